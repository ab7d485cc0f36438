//! The kinds of entries in the directory, which is what operators keep in the cluster.

/// What an entry of the directory is. The number is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Somebody who may log in; named by the user name.
    User = 1,
    /// Who may not connect for a time.
    Ban = 2,
    /// What principals may do.
    Rules = 3,
    /// A token for the HTTP port.
    Token = 4,
    /// A random number of the cluster's own, which nodes derive from what all of them must derive alike.
    Secret = 5,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 5] = [
        Kind::User,
        Kind::Ban,
        Kind::Rules,
        Kind::Token,
        Kind::Secret,
    ];

    /// The kind of a number, if this version knows it.
    pub fn of_number(number: u32) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u32 == number)
    }

    /// Its name, for logs and messages.
    pub fn name(self) -> &'static str {
        match self {
            Kind::User => "user",
            Kind::Ban => "ban",
            Kind::Rules => "rules",
            Kind::Token => "token",
            Kind::Secret => "secret",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_on_disk() {
        let numbers = Kind::ALL.map(|kind| kind as u32);
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
        for kind in Kind::ALL {
            assert_eq!(Kind::of_number(kind as u32), Some(kind));
        }
        assert_eq!(Kind::of_number(0), None);
        assert_eq!(Kind::of_number(257), None);
    }
}
