//! One random history of the directory, always the same; as in [`super::golden`], a constant may be recorded anew only
//! when the history itself was changed.

use sha2::{Digest as _, Sha256};

use super::Replica;
use super::directory::write;
use super::golden_commands::Random;
use crate::base::proto::command;

/// What was stored after each batch.
const GOLDEN: &str = "fd3101a8be93d4dc";

#[test]
fn rows_on_disk_are_what_they_were() {
    let (mut random, mut replica) = (Random(31), Replica::new());
    let mut hash = Sha256::new();
    for _ in 0..2_000 {
        if random.percent(10) {
            replica.pass(random.of(&[1, 500, 2_500]));
        }
        let count = 1 + random.below(3);
        let changes = (0..count).map(|_| command::DirectoryChange {
            kind: 1 + random.below(4) as u32,
            name: format!("name {}", random.below(4)),
            expected_version: random.percent(30).then(|| random.below(replica.index)),
            value: random
                .percent(70)
                .then(|| random.below(1_000).to_string().into()),
            expires_at_ms: match random.percent(30) {
                true => replica.now + random.below(3_000),
                false => 0,
            },
            keeps_version: random.percent(20),
            expires_in_ms: 0,
        });
        let changes = changes.collect();
        replica.run(vec![write(changes)]);
        for (key, row) in &replica.stored {
            hash.update((key.len() as u64).to_be_bytes());
            hash.update(key);
            hash.update((row.len() as u64).to_be_bytes());
            hash.update(row);
        }
    }
    let found = hash.finalize();
    let found: String = found[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(found, GOLDEN);
}
