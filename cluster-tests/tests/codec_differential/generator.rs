//! Packets from a seed, legal and nearly legal, written byte by byte without our encoders.

/// A small deterministic generator (xorshift64*): a failing case is its seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn byte(&mut self) -> u8 {
        self.next() as u8
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// How one packet is made.
pub struct Generator {
    random: Random,
    v5: bool,
}

/// Identifiers of properties by the shape of their value.
const BYTES: &[u8] = &[0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A];
const SHORTS: &[u8] = &[0x13, 0x21, 0x22, 0x23];
const LONGS: &[u8] = &[0x02, 0x11, 0x18, 0x27];
const STRINGS: &[u8] = &[0x03, 0x08, 0x12, 0x15, 0x1A, 0x1C, 0x1F];
const BINARIES: &[u8] = &[0x09, 0x16];

impl Generator {
    pub fn new(seed: u64, v5: bool) -> Self {
        Self {
            random: Random::new(seed),
            v5,
        }
    }

    /// A packet a client sends; `connect` makes it a CONNECT. One in three is damaged afterwards.
    pub fn packet(&mut self, connect: bool) -> Vec<u8> {
        let kind = if connect {
            1
        } else {
            self.random
                .pick(&[3, 3, 3, 4, 5, 6, 7, 8, 8, 10, 12, 14, 15])
        };
        let kind = if kind == 15 && !self.v5 { 3 } else { kind };
        let mut first = kind << 4 | if matches!(kind, 6 | 8 | 10) { 2 } else { 0 };
        let mut body = Vec::new();
        match kind {
            1 => self.connect(&mut body),
            3 => {
                let qos = self.random.below(3) as u8;
                first |= qos << 1 | self.random.below(2) as u8;
                if qos > 0 && self.random.once_in(3) {
                    first |= 8;
                }
                self.publish(&mut body, qos);
            }
            4..=7 => self.acknowledgement(&mut body, kind),
            8 => self.subscribe(&mut body),
            10 => self.unsubscribe(&mut body),
            14 => self.disconnect(&mut body),
            15 => self.auth(&mut body),
            _ => {}
        }
        if self.random.once_in(3) {
            self.damage(&mut first, &mut body);
        }
        let mut packet = vec![first];
        variable(&mut packet, body.len());
        packet.extend_from_slice(&body);
        packet
    }

    /// Changes, drops or adds a byte, mostly in the body.
    fn damage(&mut self, first: &mut u8, body: &mut Vec<u8>) {
        if body.is_empty() || self.random.once_in(12) {
            *first ^= 1 << self.random.below(4);
            return;
        }
        for _ in 0..=self.random.below(2) {
            let place = self.random.below(body.len().max(1) as u64) as usize;
            match self.random.below(5) {
                0 => body.truncate(place),
                1 => body.push(self.random.byte()),
                2 if place < body.len() => body[place] ^= 1 << self.random.below(8),
                3 if place < body.len() => body[place] = self.random.byte(),
                _ if place < body.len() => {
                    body.remove(place);
                }
                _ => {}
            }
        }
    }

    fn connect(&mut self, out: &mut Vec<u8>) {
        let (name, level): (&[u8], u8) = if self.v5 {
            (b"MQTT", 5)
        } else {
            self.random
                .pick(&[(b"MQTT".as_slice(), 4), (b"MQIsdp".as_slice(), 3)])
        };
        field(out, name);
        out.push(level);
        let will = self.random.once_in(2);
        let user = self.random.once_in(2);
        let password = (user || self.v5) && self.random.once_in(2);
        let mut flags = u8::from(self.random.once_in(2)) << 1;
        flags |= u8::from(will) << 2 | u8::from(user) << 7 | u8::from(password) << 6;
        if will {
            flags |= (self.random.below(3) as u8) << 3 | (self.random.below(2) as u8) << 5;
        }
        out.push(flags);
        out.extend_from_slice(&[0, self.random.byte()]);
        self.properties(out, &[0x11, 0x15, 0x16, 0x17, 0x19, 0x21, 0x22, 0x26, 0x27]);
        self.text(out, 9);
        if will {
            self.properties(out, &[0x01, 0x02, 0x03, 0x08, 0x09, 0x18, 0x26]);
            self.topic(out);
            self.binary(out);
        }
        if user {
            self.text(out, 9);
        }
        if password {
            self.binary(out);
        }
    }

    fn publish(&mut self, out: &mut Vec<u8>, qos: u8) {
        self.topic(out);
        if qos > 0 {
            self.packet_id(out);
        }
        self.properties(out, &[0x01, 0x02, 0x03, 0x08, 0x09, 0x23, 0x26, 0x26]);
        for _ in 0..self.random.below(20) {
            out.push(self.random.byte());
        }
    }

    fn acknowledgement(&mut self, out: &mut Vec<u8>, kind: u8) {
        self.packet_id(out);
        if self.v5 && self.random.once_in(2) {
            let codes: &[u8] = if kind < 6 {
                &[0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99]
            } else {
                &[0, 0x92]
            };
            out.push(self.random.pick(codes));
            if self.random.once_in(2) {
                self.properties(out, &[0x1F, 0x26]);
            }
        }
    }

    fn subscribe(&mut self, out: &mut Vec<u8>) {
        self.packet_id(out);
        self.properties(out, &[0x0B, 0x26]);
        for _ in 0..=self.random.below(3) {
            self.filter(out);
            let qos = self.random.below(3) as u8;
            let rest = if self.v5 {
                (self.random.below(4) as u8) << 2 | (self.random.below(3) as u8) << 4
            } else {
                0
            };
            out.push(qos | rest);
        }
    }

    fn unsubscribe(&mut self, out: &mut Vec<u8>) {
        self.packet_id(out);
        self.properties(out, &[0x26]);
        for _ in 0..=self.random.below(3) {
            self.filter(out);
        }
    }

    fn disconnect(&mut self, out: &mut Vec<u8>) {
        if self.v5 && self.random.once_in(2) {
            out.push(self.random.pick(&[0, 4, 0x80, 0x81, 0x82, 0x93, 0x99]));
            if self.random.once_in(2) {
                self.properties(out, &[0x11, 0x1F, 0x26]);
            }
        }
    }

    fn auth(&mut self, out: &mut Vec<u8>) {
        out.push(self.random.pick(&[0x18, 0x19]));
        let mut list = vec![0x15];
        field(&mut list, b"method");
        if self.random.once_in(2) {
            list.push(0x16);
            self.binary(&mut list);
        }
        variable(out, list.len());
        out.extend_from_slice(&list);
    }

    /// A property list with some of `allowed`, seldom one more that may not be there or is there twice.
    fn properties(&mut self, out: &mut Vec<u8>, allowed: &[u8]) {
        if !self.v5 {
            return;
        }
        let mut list = Vec::new();
        for id in allowed {
            if self.random.once_in(3) {
                self.property(&mut list, *id);
            }
        }
        if self.random.once_in(20) {
            let any = self.random.below(0x2C) as u8;
            self.property(&mut list, any);
        }
        variable(out, list.len());
        out.extend_from_slice(&list);
    }

    fn property(&mut self, out: &mut Vec<u8>, id: u8) {
        out.push(id);
        match id {
            _ if BYTES.contains(&id) => {
                let odd = self.random.once_in(20);
                out.push(if odd {
                    self.random.byte()
                } else {
                    self.random.below(2) as u8
                });
            }
            _ if SHORTS.contains(&id) => {
                let odd = self.random.once_in(20);
                out.extend_from_slice(&[0, if odd { 0 } else { self.random.byte() | 1 }]);
            }
            _ if LONGS.contains(&id) => {
                let odd = self.random.once_in(20);
                out.extend_from_slice(&[0, 0, 0, if odd { 0 } else { self.random.byte() | 1 }]);
            }
            0x08 => self.topic(out),
            _ if STRINGS.contains(&id) => self.text(out, 9),
            _ if BINARIES.contains(&id) => self.binary(out),
            0x0B => variable(out, 1 + self.random.below(40_000) as usize),
            0x26 => {
                self.text(out, 5);
                self.text(out, 5);
            }
            _ => {}
        }
    }

    fn packet_id(&mut self, out: &mut Vec<u8>) {
        let odd = self.random.once_in(40);
        out.extend_from_slice(&[0, if odd { 0 } else { self.random.byte() | 1 }]);
    }

    fn binary(&mut self, out: &mut Vec<u8>) {
        let bytes = (0..self.random.below(9))
            .map(|_| self.random.byte())
            .collect::<Vec<_>>();
        field(out, &bytes);
    }

    fn text(&mut self, out: &mut Vec<u8>, longest: u64) {
        let mut text = String::new();
        for _ in 0..self.random.below(longest) {
            let odd = self.random.once_in(6);
            text.push(if odd {
                self.random
                    .pick(&['\u{e9}', '\u{FEFF}', '\u{1F600}', '\u{FFFD}', '+', '#', '$'])
            } else {
                self.random.pick(&['a', 'b', '/'])
            });
        }
        field(out, text.as_bytes());
    }

    fn topic(&mut self, out: &mut Vec<u8>) {
        if self.random.once_in(12) {
            return self.text(out, 9);
        }
        let topics: &[&[u8]] = &[
            b"a",
            b"a/b",
            b"/",
            b"sensors/1/temperature",
            "\u{e9}/x".as_bytes(),
        ];
        field(out, self.random.pick(topics));
    }

    fn filter(&mut self, out: &mut Vec<u8>) {
        if self.random.once_in(6) {
            return self.text(out, 9);
        }
        let filters: &[&[u8]] = &[
            b"a",
            b"a/b",
            b"#",
            b"+/b",
            b"a/+/#",
            b"$SYS/#",
            b"$share/g/a/#",
            b"$share/g",
            b"$share//a",
            b"a#",
            b"",
        ];
        field(out, self.random.pick(filters));
    }
}

fn field(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    out.extend_from_slice(bytes);
}

fn variable(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
