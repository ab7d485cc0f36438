//! Bytes that may hold a secret, while they gather.

use std::io;

use zeroize::Zeroize as _;

/// Appends bytes. A buffer that has to grow moves; what it leaves behind is wiped.
pub fn append(into: &mut Vec<u8>, bytes: &[u8]) {
    let needed = into.len() + bytes.len();
    if into.capacity() < needed {
        let mut larger = Vec::with_capacity(needed.max(2 * into.capacity()));
        larger.extend_from_slice(into);
        into.zeroize();
        *into = larger;
    }
    into.extend_from_slice(bytes);
}

/// Writes by [`append`].
pub struct Writer<'a>(pub &'a mut Vec<u8>);

impl io::Write for Writer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        append(self.0, bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_appended_and_moved_now_and_then() {
        let (mut bytes, mut moved) = (Vec::new(), 0);
        for byte in 0..=u8::MAX {
            let before = bytes.as_ptr();
            append(&mut bytes, &[byte; 3]);
            moved += usize::from(bytes.as_ptr() != before);
        }
        assert_eq!(bytes.len(), 768);
        assert!(
            bytes
                .chunks(3)
                .zip(0..=u8::MAX)
                .all(|(chunk, byte)| chunk == [byte; 3])
        );
        assert!(moved <= 10, "{moved}");
        append(&mut bytes, &[]);
        assert_eq!(bytes.len(), 768);
    }
}
