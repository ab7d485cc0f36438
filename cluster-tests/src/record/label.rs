//! The label of a message: publisher, topic, QoS and sequence number.

use std::fmt::{self, Display, Formatter};

/// Identifies a message. The payload is a function of the label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label {
    pub publisher: usize,
    pub topic: usize,
    /// The QoS of the PUBLISH; a subscription may lower it.
    pub qos: u8,
    /// 0, 1, 2, … for each publisher, topic and QoS.
    pub sequence: u32,
}

impl Display for Label {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "p{} t{} q{} n{}",
            self.publisher, self.topic, self.qos, self.sequence
        )
    }
}

impl Label {
    /// The label as text, then filler: less than 64 bytes, and 20 kB for one message of a hundred.
    pub fn payload(&self) -> Vec<u8> {
        let mixed = (self.sequence as usize)
            .wrapping_mul(7919)
            .wrapping_add(self.publisher * 31 + self.topic * 17 + usize::from(self.qos));
        let filler = if mixed % 100 == 99 {
            20_000
        } else {
            mixed % 64
        };
        let mut bytes = format!("{self} ").into_bytes();
        let letter = b'a' + u8::try_from(mixed % 26).expect("below 26");
        bytes.resize(bytes.len() + filler, letter);
        bytes
    }

    /// The label of exactly these bytes; none for bytes that [`Self::payload`] does not make.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let head = &payload[..payload.len().min(60)];
        let text = std::str::from_utf8(head).ok()?;
        let mut words = text.split(' ');
        let mut number = |prefix: char| words.next()?.strip_prefix(prefix)?.parse::<usize>().ok();
        let label = Self {
            publisher: number('p')?,
            topic: number('t')?,
            qos: u8::try_from(number('q')?).ok()?,
            sequence: u32::try_from(number('n')?).ok()?,
        };
        (label.payload() == payload).then_some(label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_read_back_and_a_changed_one_is_not() {
        for sequence in 0..300 {
            let label = Label {
                publisher: 3,
                topic: 1,
                qos: 2,
                sequence,
            };
            let payload = label.payload();
            assert_eq!(Label::parse(&payload), Some(label));
            assert_eq!(Label::parse(&payload[..payload.len() - 1]), None);
            let mut changed = payload.clone();
            changed.push(b'a');
            assert_eq!(Label::parse(&changed), None);
            let last = changed.len() - 2;
            changed.truncate(payload.len());
            changed[last] = b'!';
            assert_eq!(Label::parse(&changed), None);
        }
        assert_eq!(Label::parse(b""), None);
        assert_eq!(Label::parse(b"\xff\xff"), None);
    }
}
