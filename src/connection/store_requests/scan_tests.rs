//! SCAN: what is read for an answer, and what it says.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::rules_tests::{RULES, request};
use super::*;
use crate::acl::Rules;
use crate::machine::read::store_row;
use crate::machine::tables::Backing;
use crate::mailbox::Mailbox;

const ID: PacketId = PacketId::new(7).expect("not zero");

/// A state that has keys of the store, and counts the rows that are looked at.
#[derive(Default)]
struct Rows {
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
    looked_at: AtomicUsize,
}

impl Rows {
    fn of(keys: impl IntoIterator<Item = String>) -> Rows {
        let rows = keys.into_iter().map(|key| store_row(key.as_bytes()));
        Rows {
            rows: rows.collect(),
            looked_at: AtomicUsize::new(0),
        }
    }

    fn take_looked_at(&self) -> usize {
        self.looked_at.swap(0, Ordering::Relaxed)
    }
}

impl Backing for Rows {
    fn get(&self, key: &[u8]) -> Option<Bytes> {
        Backing::get(&self.rows, key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) {
        Backing::scan(&self.rows, from, to, &mut |key, row| {
            self.looked_at.fetch_add(1, Ordering::Relaxed);
            visit(key, row)
        });
    }
}

/// What a client is answered.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    keys: Vec<Bytes>,
    token: Option<Bytes>,
}

/// The reads that the connection has submitted are answered: what came in for its requests.
fn read(context: &Context, rows: &Rows, max_steps: u64) -> Vec<(RequestId, Reply)> {
    let reader = &context.broker.services.reader;
    reader.answer_scans(rows, |query| query.budget.max_steps = max_steps);
    let mut contents = crate::mailbox::Contents::default();
    context.mailbox.take(&mut contents);
    let items = contents.take_items().into_iter().map(|item| match item {
        Item::Read(request_id, reply) => (request_id, reply),
        other => panic!("{other:?}"),
    });
    items.collect()
}

/// The answer to a SCAN of all keys, and how often rows were read for it, each time with so many comparisons.
fn answered(
    context: &mut Context,
    rows: &Rows,
    token: Option<Bytes>,
    max_steps: u64,
) -> (Answer, usize) {
    answered_to(context, rows, scan_request(token), max_steps)
}

fn answered_to(
    context: &mut Context,
    rows: &Rows,
    scan: StoreRequest,
    max_steps: u64,
) -> (Answer, usize) {
    Scans::default().begin(context, scan);
    for rounds in 1.. {
        let mut pages = read(context, rows, max_steps);
        let Some((request_id, Reply::Page { keys, token })) = pages.pop() else {
            panic!("a page");
        };
        for key in &keys {
            assert!(
                context
                    .rights
                    .now()
                    .may_access(crate::acl::KeyAccess::Read, key),
                "the connection's thread gets only what may be read"
            );
        }
        let Some(Request::Store(request)) = context.requests.remove(request_id) else {
            panic!("it is under way");
        };
        match scan::page(context, *request, &keys, token.as_ref()) {
            Some((_, Reply::Page { keys, token })) => return (Answer { keys, token }, rounds),
            Some((_, other)) => panic!("{other:?}"),
            None => {}
        }
    }
    unreachable!("there is an answer")
}

fn scan_request(token: Option<Bytes>) -> StoreRequest {
    StoreRequest {
        packet_id: ID,
        response_topic: "answers".into(),
        correlation_data: Bytes::new(),
        verb: Verb::Scan,
        key: Bytes::new(),
        judged: None,
        scan: Some(Box::new(Scan::new(Bytes::from_static(b"*"), token))),
    }
}

/// Who may read everything gets a page as it is read, unless its token is longer than the client takes: then one page
/// more.
#[test]
fn a_token_of_a_hidden_row_is_no_longer_than_the_client_takes() {
    let mut context = Context::for_tests(false);
    let short = |number: usize| format!("b{number:03}");
    let mut keys = vec![format!("a{}", "k".repeat(1_000))];
    keys.extend((0..100).map(short));
    let rows = Rows::of(keys);
    let scan = |context: &mut Context| {
        let mut request = scan_request(None);
        let scan = request.scan.as_mut().expect("it is one");
        scan.pattern = Bytes::from_static(b"*9");
        let (answer, rounds) = answered_to(context, &rows, request, 1);
        assert!(answer.keys.is_empty(), "{answer:?}");
        (answer.token.map(|token| token.len()), rounds)
    };
    assert_eq!(scan(&mut context), (Some(1 + 1_001), 1));
    let mailbox = &context.mailbox;
    let outbox = context.broker.settings.outbox.clone();
    context.mailbox = Mailbox::new(mailbox.connection, mailbox.version, 500, 0, outbox);
    assert_eq!(scan(&mut context), (Some(1 + 4), 2));
}

/// There is no other key behind it, and so no token, which would not fit.
#[test]
fn a_long_key_is_listed_though_a_long_row_is_behind_it() {
    let mut context = Context::for_tests(false);
    let mailbox = &context.mailbox;
    let outbox = context.broker.settings.outbox.clone();
    context.mailbox = Mailbox::new(mailbox.connection, mailbox.version, 500, 0, outbox);
    let key = format!("a{}9", "k".repeat(298));
    let rows = Rows::of([key.clone(), format!("b{}", "k".repeat(250))]);
    let mut request = scan_request(None);
    let scan = request.scan.as_mut().expect("it is one");
    scan.pattern = Bytes::from_static(b"*9");
    let (answer, _) = answered_to(&mut context, &rows, request, STEPS);
    let expected = Answer {
        keys: vec![key.into()],
        token: None,
    };
    assert_eq!(answer, expected);
}

/// All answers from a token on.
fn all_answers(
    context: &mut Context,
    rows: &Rows,
    mut token: Option<Bytes>,
    max_steps: u64,
) -> Vec<Answer> {
    let mut answers = Vec::new();
    loop {
        let (answer, _) = answered(context, rows, token, max_steps);
        token = answer.token.clone();
        answers.push(answer);
        if token.is_none() {
            return answers;
        }
    }
}

/// A client that may read the keys that end with `r`, and by this many rules none of the others.
fn reads_some(rules: usize) -> Context {
    let context = Context::for_tests(false);
    let others: String = (1..rules)
        .map(|number| format!(r#""none{number:05}*","#))
        .collect();
    let rules = format!(
        r#"{{"rules": [{{"broker_resources": [{{"method": "subscribe"}}, {{"method": "publish"}}],
        "state_store_resources": [{{"method": "read", "keys": [{others} "*r"]}}]}}]}}"#
    );
    let rules = Rules::parse(rules.as_bytes(), 1).expect("rules");
    context.broker.services.rules.set(rules);
    context
}

/// Comparisons of a page, as a node reads it.
const STEPS: u64 = 1 << 20;

/// Listing everything, page by page, costs what it lists, for a client with rules as well.
#[test]
fn an_answer_reads_little_more_than_it_lists() {
    let mut context = reads_some(1);
    let page = context.broker.settings.scan_page.max_keys;
    let rows = Rows::of((0..10_000).map(|number| format!("{number:05}r")));
    let (mut token, mut listed) = (None, 0);
    loop {
        let (answer, rounds) = answered(&mut context, &rows, token, STEPS);
        let looked_at = rows.take_looked_at();
        assert!(looked_at < 4 * page, "{looked_at} rows");
        assert_eq!(rounds, 1);
        listed += answer.keys.len();
        token = answer.token;
        if token.is_none() {
            break;
        }
        assert_eq!(answer.keys.len(), page);
    }
    assert_eq!(listed, 10_000);
}

/// Keys that may not be read are passed over by the thousand, not by as many as an answer lists, and by the thread that
/// reads them.
#[test]
fn hidden_keys_cost_few_rounds() {
    let mut context = reads_some(1);
    let count = 100_000;
    let rows = Rows::of((0..count).map(|number| format!("{number:06}h")));
    let (answer, rounds) = answered(&mut context, &rows, None, STEPS);
    assert!(answer.keys.is_empty() && answer.token.is_none());
    assert!(rounds <= 20, "{rounds} rounds for {count} keys");
    let looked_at = rows.take_looked_at();
    assert!(looked_at <= count + rounds, "{looked_at} of {count}");
}

/// The more rules a key is judged by, the fewer are judged in one go.
#[test]
fn judging_keys_counts_as_the_reader_s_work() {
    let count = 3_000;
    let rows = Rows::of((0..count).map(|number| format!("{number:06}h")));
    let most = |rules: usize| {
        let mut context = reads_some(rules);
        let (_, rounds) = answered(&mut context, &rows, None, STEPS);
        rows.take_looked_at() / rounds
    };
    assert_eq!(most(1), count, "in one round");
    let rules = 2_000;
    let at_once = most(rules);
    let bound = STEPS as usize / rules + 2;
    assert!(at_once <= bound, "{at_once} keys at once, {bound} at most");
}

/// However many a client asks for at once, one is read, and the others have their answers in their order.
#[test]
fn one_scan_of_a_connection_is_read_at_a_time() {
    let mut context = reads_some(1);
    let rows = Rows::of((0..1_000).map(|number| format!("{number:06}h")));
    let mut requests = StoreRequests::default();
    for number in 0..20 {
        let words = match number {
            3 => ["SCAN", "*", "not a token"].to_vec(),
            _ => ["SCAN", "*"].to_vec(),
        };
        let (properties, payload) = request("answers", &words);
        let publish = Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: topics::INVOKE,
            packet_id: PacketId::new(number + 1),
            properties: properties.as_properties().expect("well-formed"),
            payload: &payload,
        };
        let flow = requests.handle_publish(&mut context, &publish, false);
        assert_eq!(flow, Ok(Flow::Continue));
    }
    assert_eq!(context.requests.len(), 20);
    let mut acknowledged = Vec::new();
    // Few comparisons at once, so that each takes several rounds.
    for _ in 0..10_000 {
        let depth = context.broker.services.reader.depth();
        assert_eq!(depth, usize::from(context.requests.len() > 0));
        for (request_id, reply) in read(&context, &rows, 5_000) {
            requests.handle_store_reply(&mut context, request_id, &reply);
        }
        requests.handle_sent(&mut context);
        acknowledged.extend(context.take_acknowledgements());
    }
    let expected: Vec<u8> = (1..=20).flat_map(|id| [0x40, 2, 0, id]).collect();
    assert_eq!(acknowledged, expected);
    let (depth, kept) = (context.broker.services.reader.depth(), requests.memory());
    assert_eq!((context.requests.len(), depth), (0, 0));
    let routes = requests.answers.as_ref().map_or(0, |it| it.routes.memory());
    assert_eq!(kept, routes, "nothing is kept of them");
}

/// Whatever token is made up, and however much a pattern takes, so that few rows are looked at for a page.
#[test]
fn answers_of_scan_do_not_depend_on_keys_that_may_not_be_read() {
    let mut context = reads_some(1);
    let readable: Vec<String> = (0..600).map(|number| format!("{number:04}r")).collect();
    // At the beginning, at the end, and between two readable keys.
    let hidden = (0..3_000).map(|number| match number {
        0..1_000 => format!("!{number:04}h"),
        1_000..2_000 => format!("0299s{number:04}h"),
        _ => format!("x{number:04}h"),
    });
    let all = Rows::of(readable.iter().cloned().chain(hidden));
    let rows = Rows::of(readable.iter().cloned());
    for token in [
        None,
        Some("!0500"),
        Some("0299s1500"),
        Some("0255r"),
        Some("x2500h"),
    ] {
        let token = token.map(|last| store::scan::token_after(last.as_bytes()));
        let mut scan = |rows, steps| all_answers(&mut context, rows, token.clone(), steps);
        let expected = scan(&rows, STEPS);
        for steps in [STEPS, 100, 1] {
            assert_eq!(scan(&all, steps), expected, "{token:?}, {steps}");
        }
        let keys: Vec<_> = expected.iter().flat_map(|answer| &answer.keys).collect();
        let after = token.as_ref().map_or(&b""[..], |token| &token[1..]);
        let there = readable.iter().filter(|key| key.as_bytes() > after);
        let there: Vec<_> = there.map(String::as_bytes).collect();
        assert_eq!(keys, there, "each is listed once");
    }
}

#[test]
fn rights_that_are_lost_while_a_scan_goes_on_count_in_its_answer() {
    let mut context = Context::for_tests(false);
    let rules = Rules::parse(RULES.as_bytes(), 1).expect("rules");
    context.broker.services.rules.set(rules);
    let scan = scan_request(None);
    let token = store::scan::token_after(b"a1");
    let found = [Bytes::from_static(b"a1")];
    assert!(scan::page(&mut context, scan, &found, Some(&token)).is_none());
    let Some(Request::Store(request)) = context.requests.remove(0) else {
        panic!("it goes on");
    };
    let others = RULES.replace("a*", "b*");
    let others = Rules::parse(others.as_bytes(), 2).expect("rules");
    context.broker.services.rules.set(others);
    let found = [Bytes::from_static(b"a2"), Bytes::from_static(b"b1")];
    let (_, page) = scan::page(&mut context, *request, &found, None).expect("the last one");
    let expected = Reply::Page {
        keys: vec![Bytes::from_static(b"b1")],
        token: None,
    };
    assert_eq!(page, expected);
}
