//! What a cluster commits that nobody asks anything of.

use super::events::set_events;
use super::{Replica, close, open, set};
use crate::base::proto::command::{self, command::Kind};
use crate::base::time::Millis;
use crate::store::Condition;

/// Log entries until nothing is due any more, each as soon as the leader sees that something is.
fn entries_until_nothing_is_due(replica: &mut Replica) -> usize {
    let mut entries = 0;
    while replica.machine.next_due() != Millis::NEVER {
        replica.now = replica.now.max(replica.machine.next_due().0);
        replica.apply(Vec::new());
        entries += 1;
        assert!(entries < 100_000, "there is no end");
    }
    entries
}

/// Tombstones, replies that are remembered and numbers of events end together with others of their second.
#[test]
fn what_has_to_end_some_time_ends_in_few_log_entries() {
    let mut replica = Replica::new();
    replica.run(vec![set_events(|settings| settings.keep_s = 30)]);
    let (begin, writes) = (replica.now, 500_u64);
    for number in 0..writes {
        let key = number.to_be_bytes();
        let write = set(&key, b"v", Condition::None, None, &key);
        let delete = command::StoreWrite {
            verb: 1,
            correlation_data: vec![1].into(),
            client_id: number.to_string(),
            value: Vec::new().into(),
            ..write.clone()
        };
        replica.now += 1;
        replica.run(vec![Kind::StoreWrite(write)]);
        replica.now += 1;
        replica.run(vec![Kind::StoreWrite(delete)]);
        let client = command::OpenSession {
            expiry_interval_s: 0,
            ..open(&number.to_string(), number + 1)
        };
        replica.now += 1;
        replica.run(vec![
            Kind::OpenSession(client),
            close(&number.to_string(), number + 1),
        ]);
    }
    let seconds = (replica.now - begin).div_ceil(1_000) as usize;
    let entries = entries_until_nothing_is_due(&mut replica);
    assert!(entries > 0, "something was to end");
    // Each second may have an entry for tombstones, for replies, for numbers, and for events that nobody keeps.
    let most = 4 * (seconds + 2);
    assert!(
        entries <= most,
        "{entries} log entries for {seconds} s of writes"
    );
    assert_eq!(replica.machine.usage().keys, 0);
}
