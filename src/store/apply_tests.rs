#[path = "apply_history_tests.rs"]
mod histories;
#[path = "apply_quota_tests.rs"]
mod quota;

use crate::base::hlc::MAX_DRIFT_MS;

use super::*;

const NOW: Millis = Millis(1_000_000);

/// One key of a store, as the machine keeps it.
struct Key {
    row: Option<KeyRow>,
    clock: Millis,
    usage: Usage,
    quota: Quota,
}

fn hlc(text: &str) -> Hlc {
    Hlc::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn set(value: &str) -> Write<'_> {
    Write {
        key: b"key",
        action: WriteAction::Set {
            value: value.as_bytes(),
            condition: Condition::None,
            expire_ms: None,
        },
        timestamp: Some(Hlc::parse("1000000:0:CLIENT").unwrap()),
        fencing_token: None,
    }
}

fn set_if(condition: Condition, value: &str) -> Write<'_> {
    Write {
        action: WriteAction::Set {
            value: value.as_bytes(),
            condition,
            expire_ms: None,
        },
        ..set(value)
    }
}

fn set_px(value: &str, ms: u64) -> Write<'_> {
    Write {
        action: WriteAction::Set {
            value: value.as_bytes(),
            condition: Condition::None,
            expire_ms: Some(ms),
        },
        ..set(value)
    }
}

fn del() -> Write<'static> {
    Write {
        action: WriteAction::Del,
        timestamp: None,
        ..set("")
    }
}

fn vdel(value: &str) -> Write<'_> {
    Write {
        action: WriteAction::VDel {
            value: value.as_bytes(),
        },
        timestamp: None,
        ..set("")
    }
}

fn with_token<'a>(write: Write<'a>, token: &str) -> Write<'a> {
    Write {
        fencing_token: Some(hlc(token)),
        ..write
    }
}

impl Key {
    fn absent() -> Self {
        Key {
            row: None,
            clock: NOW,
            usage: Usage::default(),
            quota: Quota::UNLIMITED,
        }
    }

    fn with(value: &str) -> Self {
        let mut key = Key::absent();
        assert!(matches!(key.apply(&set(value)), Reply::Set { .. }));
        key
    }

    /// Fires a due expiry, as the machine does before the commands of a batch. Gives the version observers see.
    fn expire(&mut self) -> Option<Hlc> {
        let row = self.row.as_ref()?;
        let (tombstone, usage) = expire(b"key", row, self.clock, self.usage)?;
        self.usage = usage;
        let version = tombstone.version.clone();
        self.row = Some(KeyRow::Tombstone(tombstone));
        Some(version)
    }

    fn apply(&mut self, write: &Write<'_>) -> Reply {
        let outcome = apply(
            write,
            self.row.as_ref(),
            self.clock,
            self.usage,
            &self.quota,
        );
        self.usage = outcome.usage;
        match outcome.row {
            RowChange::Unchanged => {}
            RowChange::Tombstone(tombstone) => self.row = Some(KeyRow::Tombstone(tombstone)),
            RowChange::Put(record) => {
                self.row = Some(KeyRow::Value(KeyRecord {
                    value: Bytes::copy_from_slice(record.value),
                    version: record.version,
                    fencing_token: record.fencing_token,
                    expires_at: record.expires_at,
                }));
            }
        }
        outcome.reply
    }

    fn record(&self) -> &KeyRecord {
        self.row
            .as_ref()
            .and_then(KeyRow::record)
            .expect("the test has set the key")
    }

    fn version(&self) -> Hlc {
        self.row
            .as_ref()
            .expect("the test has set the key")
            .version()
            .clone()
    }
}

#[test]
fn set_returns_the_version_get_returns() {
    let mut key = Key::absent();
    let Reply::Set { version } = key.apply(&set("v")) else {
        panic!("refused");
    };
    assert_eq!(version, hlc("1000000:1:StateStore"));
    assert_eq!(
        get(key.row.as_ref()),
        Reply::Value {
            value: Bytes::from_static(b"v"),
            version
        }
    );
}

#[test]
fn nx_sets_an_absent_key_only() {
    let mut key = Key::absent();
    assert!(matches!(
        key.apply(&set_if(Condition::Nx, "a")),
        Reply::Set { .. }
    ));
    let version = key.version();
    for value in ["a", "b"] {
        assert_eq!(
            key.apply(&set_if(Condition::Nx, value)),
            Reply::NotSet {
                version: version.clone()
            }
        );
    }
    key.apply(&del());
    assert!(matches!(
        key.apply(&set_if(Condition::Nx, "c")),
        Reply::Set { .. }
    ));
}

#[test]
fn nex_sets_an_absent_key_or_one_with_the_same_value() {
    let mut key = Key::absent();
    assert!(matches!(
        key.apply(&set_if(Condition::Nex, "a")),
        Reply::Set { .. }
    ));
    assert!(matches!(
        key.apply(&set_if(Condition::Nex, "a")),
        Reply::Set { .. }
    ));
    let version = key.version();
    assert_eq!(
        key.apply(&set_if(Condition::Nex, "b")),
        Reply::NotSet { version }
    );
    assert_eq!(key.record().value, "a");
}

#[test]
fn del_returns_the_version_of_the_deleted_value_and_observers_see_a_higher_one() {
    let mut key = Key::with("v");
    let version = key.version();
    assert_eq!(
        key.apply(&del()),
        Reply::Deleted {
            version: version.clone()
        }
    );
    assert!(key.version() > version);
    assert_eq!(key.apply(&del()), Reply::NothingToDelete);
    assert_eq!(get(key.row.as_ref()), Reply::NoValue);
}

#[test]
fn vdel_deletes_the_value_it_names_only() {
    let mut key = Key::absent();
    assert_eq!(key.apply(&vdel("v")), Reply::NothingToDelete);
    key.apply(&set("v"));
    assert_eq!(key.apply(&vdel("w")), Reply::ValueDiffers);
    assert_eq!(key.apply(&vdel("")), Reply::ValueDiffers);
    let version = key.version();
    assert_eq!(key.apply(&vdel("v")), Reply::Deleted { version });
    assert_eq!(key.apply(&vdel("v")), Reply::NothingToDelete);
}

#[test]
fn timestamps_more_than_a_minute_ahead_are_refused() {
    let mut key = Key::absent();
    let at = |wall: u64| Write {
        timestamp: Some(hlc(&format!("{wall}:0:c"))),
        ..set("v")
    };
    assert!(matches!(
        key.apply(&at(NOW.0 + MAX_DRIFT_MS)),
        Reply::Set { .. }
    ));
    assert_eq!(
        key.apply(&at(NOW.0 + MAX_DRIFT_MS + 1)),
        Reply::Error(StoreError::TimestampTooFarAhead)
    );
    assert!(
        matches!(key.apply(&at(0)), Reply::Set { .. }),
        "behind is fine"
    );
    let far = Some(hlc("1060001:0:c"));
    for write in [del(), vdel("v")] {
        let write = Write {
            timestamp: far.clone(),
            ..write
        };
        assert_eq!(
            key.apply(&write),
            Reply::Error(StoreError::TimestampTooFarAhead)
        );
    }
}

#[test]
fn fencing_tokens_more_than_a_minute_ahead_are_refused() {
    let mut key = Key::with("v");
    for write in [set("v"), del(), vdel("v")] {
        assert_eq!(
            key.apply(&with_token(write, "1060001:0:c")),
            Reply::Error(StoreError::FencingTokenTooFarAhead)
        );
    }
    assert_eq!(key.record().fencing_token, None);
}

#[test]
fn the_first_fencing_token_is_stored() {
    let mut key = Key::with("v");
    key.apply(&with_token(set("w"), "5:1:StateStore"));
    assert_eq!(key.record().fencing_token, Some(hlc("5:1:StateStore")));
}

#[test]
fn a_protected_key_requires_a_fencing_token_of_every_write() {
    let mut key = Key::absent();
    key.apply(&with_token(set("v"), "5:1:StateStore"));
    for write in [
        set("v"),
        del(),
        vdel("v"),
        vdel("w"),
        set_if(Condition::Nx, "v"),
    ] {
        assert_eq!(
            key.apply(&write),
            Reply::Error(StoreError::FencingTokenRequired)
        );
    }
    assert!(matches!(get(key.row.as_ref()), Reply::Value { .. }));
}

#[test]
fn lower_fencing_tokens_are_refused_equal_and_higher_accepted() {
    let mut key = Key::absent();
    key.apply(&with_token(set("v"), "5:5:m"));
    for lower in ["4:9:z", "5:4:z", "5:5:a"] {
        for write in [set("v"), del(), vdel("v"), set_if(Condition::Nx, "v")] {
            assert_eq!(
                key.apply(&with_token(write, lower)),
                Reply::Error(StoreError::FencingTokenLower),
                "{lower}"
            );
        }
    }
    for rising in ["5:5:m", "5:5:n", "5:6:a", "6:0:a"] {
        assert!(matches!(
            key.apply(&with_token(set("v"), rising)),
            Reply::Set { .. }
        ));
        assert_eq!(key.record().fencing_token, Some(hlc(rising)));
    }
}

#[test]
fn the_fencing_token_goes_with_the_key() {
    for end in [del(), vdel("v")] {
        let mut key = Key::absent();
        key.apply(&with_token(set("v"), "5:5:m"));
        assert!(matches!(
            key.apply(&with_token(end, "5:5:m")),
            Reply::Deleted { .. }
        ));
        assert!(matches!(key.apply(&set("v")), Reply::Set { .. }));
        assert_eq!(key.record().fencing_token, None);
    }
}

#[test]
fn a_refused_condition_does_not_raise_the_fencing_token() {
    let mut key = Key::absent();
    key.apply(&with_token(set("v"), "5:5:m"));
    let refused = key.apply(&with_token(set_if(Condition::Nex, "w"), "9:9:m"));
    assert!(matches!(refused, Reply::NotSet { .. }));
    assert_eq!(key.record().fencing_token, Some(hlc("5:5:m")));
}

#[test]
fn checks_run_in_order_timestamps_fencing_condition() {
    let mut key = Key::absent();
    key.apply(&with_token(set("v"), "5:5:m"));
    let far = hlc("1060001:0:c");
    let both_far = Write {
        timestamp: Some(far.clone()),
        fencing_token: Some(far),
        ..set_if(Condition::Nx, "w")
    };
    assert_eq!(
        key.apply(&both_far),
        Reply::Error(StoreError::TimestampTooFarAhead)
    );
    assert_eq!(
        key.apply(&with_token(vdel("w"), "4:0:m")),
        Reply::Error(StoreError::FencingTokenLower)
    );
    assert_eq!(
        key.apply(&with_token(vdel("w"), "5:5:m")),
        Reply::ValueDiffers
    );
}

#[test]
fn expiry_is_at_the_deadline_and_never_early() {
    let mut key = Key::absent();
    key.apply(&set_px("v", 500));
    let version = key.version();
    key.clock = NOW.plus(499);
    assert_eq!(key.expire(), None);
    key.clock = NOW.plus(500);
    let seen = key.expire().expect("the key is due");
    assert!(
        seen > version,
        "observers see a version above the expired value's"
    );
    assert_eq!(get(key.row.as_ref()), Reply::NoValue);
    assert_eq!(key.apply(&del()), Reply::NothingToDelete);
    assert_eq!(key.usage, Usage::default());
}

#[test]
fn plain_set_clears_the_expiry_and_nex_px_extends_it() {
    let mut key = Key::absent();
    key.apply(&set_px("v", 500));
    key.clock = NOW.plus(400);
    let renewal = Write {
        action: WriteAction::Set {
            value: b"v",
            condition: Condition::Nex,
            expire_ms: Some(500),
        },
        ..set("v")
    };
    key.apply(&renewal);
    assert_eq!(key.record().expires_at, Some(NOW.plus(900)));
    key.apply(&set("v"));
    assert_eq!(key.record().expires_at, None);
}

#[test]
fn an_expiry_past_the_end_of_time_is_none() {
    let mut key = Key::absent();
    key.apply(&set_px("v", u64::MAX));
    assert_eq!(key.record().expires_at, None);
}

#[test]
fn a_refused_nex_does_not_touch_the_expiry() {
    let mut key = Key::absent();
    key.apply(&set_px("v", 500));
    key.apply(&set_if(Condition::Nex, "w"));
    assert_eq!(key.record().expires_at, Some(NOW.plus(500)));
}

#[test]
fn a_tombstone_keeps_versions_rising_until_the_clock_has_passed_it() {
    let mut key = Key::absent();
    let ahead = Write {
        timestamp: Some(hlc("1059000:3:c")),
        ..set("v")
    };
    key.apply(&ahead);
    key.apply(&del());
    let last = key.version();
    let Some(KeyRow::Tombstone(tombstone)) = key.row.clone() else {
        panic!("no tombstone");
    };
    assert!(tombstone.purge_at() <= NOW.plus(MAX_DRIFT_MS + 1));
    // Before: the tombstone is what makes the next version higher.
    key.apply(&set("w"));
    assert!(key.version() > last);
    // After: the clock alone does.
    let mut fresh = Key::absent();
    fresh.clock = tombstone.purge_at();
    fresh.apply(&set("w"));
    assert!(fresh.version() > last);
}

#[test]
fn a_client_ahead_does_not_drag_other_keys_along() {
    let mut key = Key::absent();
    let ahead = Write {
        timestamp: Some(hlc("1059000:3:c")),
        ..set("v")
    };
    key.apply(&ahead);
    assert_eq!(key.version(), hlc("1059000:4:StateStore"));
    let other = Key::with("v");
    assert_eq!(other.version(), hlc("1000000:1:StateStore"));
}
