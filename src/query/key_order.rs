//! Groups are answered in the order of their keys, and a continuation holds one.
//!
//! Invariant: values that are equal have one key, others have different ones, and a key has at most
//! 289 bytes: its kind, the beginning of a text, and a hash of all of it.

use sha2::{Digest as _, Sha256};

use super::expression::Path;
use super::number;
use super::value::{Row, Value};

/// Bytes of a text that its group's key shows; what is longer ends with a hash of the whole.
const SHOWN: usize = 256;

/// The key of the group that has this value at `path`: undefined, null, booleans, numbers, texts, then objects and
/// arrays, which are the same when their JSON is.
pub(super) fn group_key(row: &dyn Row, path: &Path) -> Vec<u8> {
    match row.value(path) {
        Value::Undefined => vec![0],
        Value::Null => vec![1],
        Value::Bool(truth) => vec![2, u8::from(truth)],
        Value::Number(number) => [&[3][..], &number::ordered(number)].concat(),
        Value::Text(text) => bounded(4, text.as_bytes()),
        Value::Composite => {
            let mut json = String::new();
            row.write(path, &mut json);
            bounded(5, json.as_bytes())
        }
    }
}

fn bounded(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut key = vec![kind];
    if bytes.len() <= SHOWN {
        key.extend_from_slice(bytes);
    } else {
        key.extend_from_slice(&bytes[..SHOWN]);
        key.extend_from_slice(&Sha256::digest(bytes));
    }
    key
}
