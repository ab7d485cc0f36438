//! Nothing is sent to an endpoint that has not said that it wants events.

use super::*;

#[test]
fn nothing_is_sent_without_consent_and_it_holds_for_a_day_for_what_it_was_given_for() {
    let mut rows = Rows::new(1, options(6_000, 30));
    let mut course = Course::default();
    let next = |rows: &Rows, course: &Course| course.next(&rows.view(None), rows.now());
    assert_eq!(next(&rows, &course), Next::Ask);
    let how = (End::Status(200, None), "no");
    let refused = course.asked(&rows.view(None), None, how, rows.now(), 0);
    rows.apply(refused);
    assert!(
        matches!(next(&rows, &course), Next::Hold(_)),
        "it backs off"
    );
    assert_eq!(rows.row.last_error, "no");
    rows.ticks += 2_000;
    assert_eq!(next(&rows, &course), Next::Ask);
    let given = course.asked(&rows.view(None), Some(Some(60)), how, rows.now(), 0);
    rows.apply(given);
    assert_eq!(rows.row.last_error, "");
    assert_eq!(next(&rows, &course), Next::SendNew(usize::MAX));
    assert_eq!(rows.view(None).rate(rows.now()), 60, "as was granted");
    for change in [
        (|options| options.url.push('x')) as fn(&mut EventSubscriptionOptions),
        |options| options.origin.push('x'),
        |options| options.schema = 2,
    ] {
        let former = rows.options.clone();
        change(&mut rows.options);
        assert_eq!(next(&rows, &course), Next::Ask);
        rows.options = former;
    }
    let given_at = rows.ticks;
    rows.outbox.insert(
        1,
        Event {
            time_ms: START + given_at,
            ..rows.outbox[&1].clone()
        },
    );
    rows.ticks = given_at + CONSENT_MS - 1;
    assert_eq!(next(&rows, &course), Next::SendNew(usize::MAX));
    rows.outbox.insert(
        1,
        Event {
            time_ms: START + rows.ticks,
            ..rows.outbox[&1].clone()
        },
    );
    rows.ticks += 1;
    assert_eq!(next(&rows, &course), Next::Ask, "a day is over");
    rows.options.handshake = Handshake::Off.number();
    assert_eq!(next(&rows, &course), Next::SendNew(usize::MAX));
    rows.outbox.clear();
    rows.options.handshake = Handshake::Required.number();
    assert_eq!(next(&rows, &course), Next::Wait(None), "nothing to deliver");
}
