//! RESP3 as the state store uses it: arrays of blob strings, read strictly and without a copy.
//!
//! Lengths are checked against the bytes that are there, so an announced length reserves nothing. Knows no
//! verbs.

use crate::base::hlc::{decimal, push_padded};

/// The most arguments kept of a request. No verb takes more; the rest is checked and counted only.
pub const MAX_ARGUMENTS: usize = 7;

/// The payload is not exactly one array of blob strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an array of blob strings")]
pub struct Malformed;

/// The arguments of a request, borrowed from its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments<'a> {
    kept: [&'a [u8]; MAX_ARGUMENTS],
    count: usize,
}

impl<'a> Arguments<'a> {
    /// How many there are, also beyond [`MAX_ARGUMENTS`].
    pub fn count(&self) -> usize {
        self.count
    }

    /// The arguments, at most the first [`MAX_ARGUMENTS`].
    pub fn as_slice(&self) -> &[&'a [u8]] {
        &self.kept[..self.count.min(MAX_ARGUMENTS)]
    }
}

/// Reads `*N\r\n` and N times `$len\r\nbytes\r\n`, and nothing after it (docs/spec/state-store.md, Payloads).
///
/// # Errors
/// [`Malformed`] for everything else: other types, null or negative lengths, numbers that overflow, missing or
/// trailing bytes, an empty array.
pub fn parse(payload: &[u8]) -> Result<Arguments<'_>, Malformed> {
    let mut rest = payload;
    let announced = header(&mut rest, b'*')?;
    if announced == 0 {
        return Err(Malformed);
    }
    let mut arguments = Arguments {
        kept: [&[]; MAX_ARGUMENTS],
        count: 0,
    };
    // Each turn consumes bytes or fails, so the payload's length bounds the loop.
    for _ in 0..announced {
        let length = header(&mut rest, b'$')?;
        let length = usize::try_from(length).map_err(|_| Malformed)?;
        let (argument, after) = rest.split_at_checked(length).ok_or(Malformed)?;
        rest = after.strip_prefix(b"\r\n").ok_or(Malformed)?;
        if let Some(slot) = arguments.kept.get_mut(arguments.count) {
            *slot = argument;
        }
        arguments.count += 1;
    }
    if rest.is_empty() {
        Ok(arguments)
    } else {
        Err(Malformed)
    }
}

/// Takes `<kind><decimal>\r\n` off the front of `rest`.
fn header(rest: &mut &[u8], kind: u8) -> Result<u64, Malformed> {
    /// Digits of the largest 64-bit number: longer ones, padded ones included, are refused.
    const MAX_DIGITS: usize = 20;
    let line = rest
        .strip_prefix(std::slice::from_ref(&kind))
        .ok_or(Malformed)?;
    let digits = line
        .iter()
        .take(MAX_DIGITS + 1)
        .position(|byte| *byte == b'\r')
        .ok_or(Malformed)?;
    let (number, after) = line.split_at(digits);
    *rest = after.strip_prefix(b"\r\n").ok_or(Malformed)?;
    decimal(number).ok_or(Malformed)
}

/// Appends `*count\r\n`.
pub fn push_array(out: &mut Vec<u8>, count: usize) {
    push_header(out, b'*', count);
}

/// Appends `$len\r\nbytes\r\n`.
pub fn push_blob(out: &mut Vec<u8>, bytes: &[u8]) {
    out.reserve(bytes.len() + 16);
    push_header(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn push_header(out: &mut Vec<u8>, kind: u8, number: usize) {
    out.push(kind);
    // No platform has a usize above 64 bits.
    push_padded(out, number as u64, 1);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(payload: &[u8]) -> Result<Vec<&[u8]>, Malformed> {
        parse(payload).map(|arguments| arguments.as_slice().to_vec())
    }

    #[test]
    fn an_array_of_blob_strings() {
        let payload = b"*3\r\n$3\r\nSET\r\n$7\r\nSETKEY2\r\n$6\r\nVALUE5\r\n";
        assert_eq!(list(payload), Ok(vec![&b"SET"[..], b"SETKEY2", b"VALUE5"]));
    }

    #[test]
    fn arguments_are_arbitrary_bytes() {
        let payload = b"*2\r\n$4\r\n\r\n\x00\xff\r\n$0\r\n\r\n";
        assert_eq!(list(payload), Ok(vec![&b"\r\n\x00\xff"[..], b""]));
    }

    #[test]
    fn everything_else_is_malformed() {
        let malformed: [&[u8]; 26] = [
            b"",
            b"*",
            b"*\r\n",
            b"*0\r\n",
            b"*-1\r\n",
            b"*1",
            b"*1\r",
            b"*1\n",
            b"*1\r\n",
            b"*1\r\n$3\r\nGET",
            b"*1\r\n$3\r\nGET\r",
            b"*1\r\n$3\r\nGET\n\r",
            b"*1\r\n$3\r\nGETX\r\n",
            b"*1\r\n$4\r\nGET\r\n",
            b"*1\r\n$3\r\nGET\r\n\r\n",
            b"*1\r\n$3\r\nGET\r\n$1\r\na\r\n",
            b"*2\r\n$3\r\nGET\r\n",
            b"*1\r\n+GET\r\n",
            b"*1\r\n$-1\r\n",
            b"*1\r\n$+3\r\nGET\r\n",
            b"*1\r\n$ 3\r\nGET\r\n",
            b"*1\r\n$18446744073709551615\r\nGET\r\n",
            b"*1\r\n$18446744073709551616\r\nGET\r\n",
            b"*1\r\n$000000000000000000003\r\nGET\r\n",
            b"*18446744073709551615\r\n$3\r\nGET\r\n",
            b"GET key",
        ];
        for payload in malformed {
            assert_eq!(
                list(payload),
                Err(Malformed),
                "{:?}",
                payload.escape_ascii()
            );
        }
    }

    #[test]
    fn arguments_beyond_the_kept_ones_are_counted() {
        let mut payload = b"*9\r\n".to_vec();
        (0..9).for_each(|_| push_blob(&mut payload, b"x"));
        let arguments = parse(&payload).unwrap();
        assert_eq!((arguments.count(), arguments.as_slice().len()), (9, 7));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(blobs in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..7)) {
            let mut payload = Vec::new();
            push_array(&mut payload, blobs.len());
            blobs.iter().for_each(|blob| push_blob(&mut payload, blob));
            let read = parse(&payload).unwrap();
            prop_assert_eq!(read.as_slice().to_vec(), blobs.iter().map(Vec::as_slice).collect::<Vec<_>>());
            for end in 0..payload.len() {
                prop_assert_eq!(parse(&payload[..end]), Err(Malformed));
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(payload in prop::collection::vec(prop_oneof![
            any::<u8>(), Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), b'0'..=b'9'], 0..60)) {
            let _ = parse(&payload);
        }
    }
}
