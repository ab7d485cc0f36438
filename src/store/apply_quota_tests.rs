//! The bounds on keys and bytes.

use super::*;

#[test]
fn the_quota_bounds_keys_and_bytes() {
    let mut key = Key::absent();
    key.quota.max_keys = 0;
    assert_eq!(
        key.apply(&set("v")),
        Reply::Error(StoreError::QuotaExceeded)
    );
    assert_eq!((key.row.is_none(), key.usage), (true, Usage::default()));
    key.quota = Quota {
        max_keys: 1,
        max_bytes: 8,
    };
    assert!(matches!(key.apply(&set("12345")), Reply::Set { .. }));
    assert_eq!(key.usage, Usage { keys: 1, bytes: 8 });
    assert_eq!(
        key.apply(&set("123456")),
        Reply::Error(StoreError::QuotaExceeded)
    );
    assert_eq!(key.record().value, "12345");
}

#[test]
fn a_full_store_still_takes_what_does_not_grow_it() {
    let mut key = Key::with("12345");
    key.quota = Quota {
        max_keys: 0,
        max_bytes: 0,
    };
    assert!(matches!(key.apply(&set("54321")), Reply::Set { .. }));
    assert!(matches!(key.apply(&set("5")), Reply::Set { .. }));
    assert!(matches!(key.apply(&del()), Reply::Deleted { .. }));
    assert_eq!(key.usage, Usage::default());
}

#[test]
fn a_refused_condition_is_reported_before_the_quota() {
    let mut key = Key::with("v");
    key.quota = Quota {
        max_keys: 0,
        max_bytes: 0,
    };
    assert!(matches!(
        key.apply(&set_if(Condition::Nx, "longer")),
        Reply::NotSet { .. }
    ));
}
