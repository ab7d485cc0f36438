//! Values that compress to half, as those of RocksDB's `db_bench` do: random bytes, twice. Each is cut from the same random
//! bytes at a place of its own.

/// Places at which a value can begin: two of the same block of a database hardly ever overlap.
const PLACES: usize = 1 << 20;

/// Values of one size.
pub struct Values {
    pool: Vec<u8>,
    size: usize,
}

impl Values {
    /// Values of `size` bytes.
    pub fn new(size: usize) -> Values {
        let mut random = 0x9E37_79B9_7F4A_7C15_u64;
        let words = (PLACES + size).div_ceil(8);
        let pool = (0..words).flat_map(|_| next_random(&mut random).to_le_bytes());
        Values {
            pool: pool.collect(),
            size,
        }
    }

    /// Appends one of them, chosen by a random number.
    pub fn append(&self, to: &mut Vec<u8>, random: u64) {
        let place = (random >> 32) as usize % PLACES;
        let half = &self.pool[place..][..self.size.div_ceil(2)];
        to.extend_from_slice(half);
        to.extend_from_slice(&half[..self.size / 2]);
    }

    /// Bytes of each.
    pub fn size(&self) -> usize {
        self.size
    }
}

/// The next number of a xorshift generator (Marsaglia 2003, the triple 13, 7, 17).
pub fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_a_value_of_the_size_asked_for() {
        let value = |values: &Values, random| {
            let mut value = Vec::new();
            values.append(&mut value, random);
            value
        };
        for size in [0, 1, 2, 511, 512, 4096] {
            let values = Values::new(size);
            for random in [0, u64::MAX, 1 << 63, u64::from(u32::MAX)] {
                assert_eq!(value(&values, random).len(), size);
            }
        }
        let values = Values::new(64);
        assert_ne!(value(&values, 0), value(&values, 1 << 32));
    }
}
