//! Tells a device or a module of its changed desired properties.

use super::answers;
use crate::codec::ReasonCode;
use crate::connection::context::Context;
use crate::connection::end::Ended;
use crate::mailbox::{Notification, Notifications};
use crate::telemetry::labels::{DisconnectReason, TwinNotification};
use crate::twin;

/// Sends the notifications that wait, but for those of writes that an answer to a GET has shown already.
///
/// # Errors
/// One is larger than the client accepts, or begins before what it has been shown: its connection ends, so that it
/// reads the whole document when it is back.
pub(in crate::connection) fn notify(
    context: &mut Context,
    waiting: &mut Notifications,
    shown: u64,
) -> Result<(), Ended> {
    // Most connections never have any.
    if waiting.is_empty() {
        return Ok(());
    }
    for notification in waiting.take() {
        if notification.version() <= shown {
            let folded = &context.broker.metrics.twin_notifications;
            folded.of(TwinNotification::Folded).increment();
            continue;
        }
        if let Notification::Folded { before, .. } = &notification
            && before.head().is_ok_and(|(version, _)| version < shown)
        {
            return Err(unknown_since(shown));
        }
        send(context, notification)?;
    }
    Ok(())
}

/// What the client has been shown lies inside of several writes that have become one: what that says does not undo what
/// only the first of them did.
fn unknown_since(shown: u64) -> Ended {
    tracing::debug!(shown, "a client reads its desired properties anew");
    Ended::disconnect(
        DisconnectReason::Refused,
        ReasonCode::ImplementationSpecificError,
        "too many changes of the desired properties at once: read them anew",
    )
}

fn send(context: &mut Context, notification: Notification) -> Result<(), Ended> {
    let (version, body) = match notification {
        Notification::Written { version, body } => (version, body),
        Notification::Folded {
            version,
            before,
            after,
        } => match twin::folded(&before, &after) {
            Ok(body) => (version, body),
            Err(error) => {
                tracing::error!(%error, "a twin's desired properties can't be read");
                return Err(Ended::disconnect(
                    DisconnectReason::Refused,
                    ReasonCode::ImplementationSpecificError,
                    "the desired properties can't be read; see the broker's log",
                ));
            }
        },
    };
    let topic = format!("$iothub/twin/PATCH/properties/desired/?$version={version}");
    answers::send(context, &topic, body.as_bytes())?;
    let sent = &context.broker.metrics.twin_notifications;
    sent.of(TwinNotification::Sent).increment();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::ConnectionId;
    use crate::base::time::Millis;
    use crate::codec::Version;
    use crate::machine::hub::DesiredChanged;
    use crate::twin::{EncodedSection, Section, request};

    /// The section after so many writes of `{"n": number, "m<number>": true}`, each of which replaces the one before.
    fn section(writes: u64) -> EncodedSection {
        let mut section = Section::default();
        for number in 0..writes {
            let body = format!("{{\"n\":{number},\"m{number}\":true}}");
            let members = request::reported_patch(body.as_bytes()).expect("it breaks no rule");
            let next = section.replaced(members, Millis(number), u64::MAX);
            section = next.expect("it is small");
        }
        EncodedSection::of(&section)
    }

    fn change(writes: u64) -> DesiredChanged {
        DesiredChanged {
            connection: ConnectionId(1),
            version: writes + 1,
            body: format!("{{\"n\":{writes}}}"),
            before: section(writes - 1),
            after: section(writes),
        }
    }

    fn told(changes: std::ops::RangeInclusive<u64>) -> String {
        let mut context = Context::for_tests(false);
        context.options.version = Version::V311;
        let mut waiting = Notifications::of(changes.map(change));
        assert!(notify(&mut context, &mut waiting, 0).is_ok());
        assert!(waiting.is_empty());
        let sent = std::mem::take(&mut context.output.packets().bytes);
        String::from_utf8_lossy(&sent).into_owned()
    }

    #[test]
    fn each_write_is_told_by_itself_and_too_many_at_once() {
        const TOPIC: &str = "$iothub/twin/PATCH/properties/desired/?$version=";
        let two = told(1..=2);
        let (first, second) = (
            format!("{TOPIC}2{{\"n\":1}}0"),
            format!("{TOPIC}3{{\"n\":2}}"),
        );
        assert!(two.contains(&first) && two.ends_with(&second), "{two}");
        let many = told(1..=17);
        // What became of the document from before the first to after the last.
        let folded = format!("{TOPIC}18{{\"m16\":true,\"n\":16,\"$version\":18}}");
        assert!(many.starts_with('0') && many.ends_with(&folded), "{many}");
        assert_eq!(many.matches(TOPIC).count(), 1);
    }

    /// What the client was shown in between may have what the notification does not take back.
    #[test]
    fn several_writes_of_which_a_get_has_shown_the_first_end_the_connection() {
        for (shown, is_told) in [(0, true), (1, true), (2, false), (17, false), (18, true)] {
            let mut context = Context::for_tests(false);
            context.options.version = Version::V311;
            let mut waiting = Notifications::of((1..=17).map(change));
            let notified = notify(&mut context, &mut waiting, shown);
            assert_eq!(notified.is_ok(), is_told, "{shown}");
            let sent = std::mem::take(&mut context.output.packets().bytes);
            assert_eq!(sent.is_empty(), shown > 1, "{shown}");
        }
    }

    #[test]
    fn one_that_the_client_does_not_accept_ends_its_connection() {
        let mut context = Context::for_tests(false);
        context.options.limits.max_packet_size = 30;
        let ended = notify(&mut context, &mut Notifications::of([change(1)]), 0);
        let ended = ended.expect_err("it would not know that it missed one");
        assert_eq!(ended.reason, Some(ReasonCode::PacketTooLarge));
        let sent = &context.broker.metrics.twin_notifications;
        assert_eq!(sent.of(TwinNotification::Sent).get(), 0);
    }
}
