//! Shared access policies: keys that are no identity's, and what their holders may do.

use std::collections::BTreeMap;
use std::fmt;

use zeroize::Zeroizing;

use super::sas::{Token, key_from_base64};

/// What a policy lets its holder do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Read identities.
    RegistryRead,
    /// Make, change and delete identities.
    RegistryWrite,
    /// Read, change and query twins.
    ServiceConnect,
    /// Connect as any device or module.
    DeviceConnect,
}

impl Permission {
    const ALL: [(&'static str, Permission); 4] = [
        ("RegistryRead", Permission::RegistryRead),
        ("RegistryWrite", Permission::RegistryWrite),
        ("ServiceConnect", Permission::ServiceConnect),
        ("DeviceConnect", Permission::DeviceConnect),
    ];

    const fn bit(self) -> u8 {
        1 << self as u8
    }

    fn named(name: &str) -> Option<Permission> {
        let mut all = Permission::ALL.into_iter();
        all.find(|(of, _)| *of == name)
            .map(|(_, permission)| permission)
    }
}

/// A shared access policy.
pub struct Policy {
    permissions: u8,
    keys: Vec<Zeroizing<Vec<u8>>>,
}

impl Policy {
    /// Whether its holder may do this.
    pub fn permits(&self, permission: Permission) -> bool {
        self.permissions & permission.bit() != 0
    }

    fn keys(&self) -> [&[u8]; 2] {
        [0, 1].map(|at| self.keys.get(at).map_or(&[][..], |key| key))
    }
}

/// A line that can't be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyProblem {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong, in half a sentence.
    pub message: String,
}

/// All policies, by name.
#[derive(Default)]
pub struct Policies(BTreeMap<Box<str>, Policy>);

impl fmt::Debug for Policies {
    /// Without the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Policies {
    /// Reads `name:PERMISSION,…:KEY[,KEY]` lines.
    ///
    /// # Errors
    /// With every line that can't be taken.
    pub fn parse(text: &str) -> Result<Policies, Vec<PolicyProblem>> {
        let mut policies = Policies::default();
        let mut problems = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let taken = policy(line).and_then(|(name, policy)| {
                match policies.0.insert(name.into(), policy) {
                    None => Ok(()),
                    Some(_) => Err(format!("the policy {name:?} is there twice")),
                }
            });
            problems.extend(taken.err().map(|message| PolicyProblem {
                line: number,
                message,
            }));
        }
        match problems.is_empty() {
            true => Ok(policies),
            false => Err(problems),
        }
    }

    /// Feeds all of it to a digest. Equal policies say the same, whatever the order of their lines.
    pub fn digest(&self, mut feed: impl FnMut(&[u8])) {
        for (name, policy) in &self.0 {
            let permissions = [policy.permissions];
            let parts = [name.as_bytes(), &permissions].into_iter();
            let parts = parts.chain(policy.keys());
            for part in parts {
                feed(&(part.len() as u64).to_be_bytes());
                feed(part);
            }
        }
    }

    /// The policy whose key has signed a token that names one. An unknown one takes as long as a known one:
    /// `made_up` is tried in the place of its keys.
    pub fn signer(&self, token: &Token<'_>, made_up: &[u8]) -> Option<&Policy> {
        let policy = token.policy().and_then(|name| self.0.get(name));
        let keys = policy.map_or([made_up; 2], Policy::keys);
        let is_signed = token.signer(keys).is_some();
        policy.filter(|_| is_signed)
    }
}

/// One line. What is wrong is said without its keys.
fn policy(line: &str) -> Result<(&str, Policy), String> {
    let parts: Vec<&str> = line.split(':').map(str::trim).collect();
    let [name, permissions, keys] = parts[..] else {
        return Err("it is not name:PERMISSION,…:KEY[,KEY]".to_owned());
    };
    if name.is_empty() {
        return Err("the policy has no name".to_owned());
    }
    let mut bits = 0;
    for permission in permissions.split(',').map(str::trim) {
        let known = Permission::named(permission);
        bits |= known
            .ok_or_else(|| format!("{permission:?} is no permission"))?
            .bit();
    }
    let keys = keys.split(',').map(|key| key_from_base64(key.trim()));
    let keys: Option<Vec<_>> = keys.map(|key| key.map(Zeroizing::new)).collect();
    let keys = keys.filter(|keys| keys.len() <= 2);
    let keys = keys.ok_or("its keys are not one or two of base64 of 16 to 64 bytes")?;
    let permissions = bits;
    Ok((name, Policy { permissions, keys }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::registry::sas;

    /// Bytes 1, 2, … 32, and 2, 3, … 33.
    const KEYS: [&str; 2] = [
        "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=",
        "AgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4fICE=",
    ];

    #[test]
    fn a_policy_signs_with_either_key_and_permits_what_its_line_says() {
        let [one, other] = KEYS;
        let text = format!(
            "# ours\n\n device : DeviceConnect , RegistryRead:{other},{one}\nservice:ServiceConnect:{one}"
        );
        let policies = Policies::parse(&text).expect("two policies");
        assert_eq!(format!("{policies:?}"), r#"{"device", "service"}"#);
        let made_up = [7; 32];
        let signed = sas::read(sas::tests::OF_POLICY).expect("a token");
        let policy = policies.signer(&signed, &made_up).expect("it has signed");
        assert!(
            policy.permits(Permission::DeviceConnect) && policy.permits(Permission::RegistryRead)
        );
        assert!(
            !policy.permits(Permission::RegistryWrite)
                && !policy.permits(Permission::ServiceConnect)
        );
        let others = Policies::parse(&format!("device:DeviceConnect:{other}")).expect("one policy");
        assert!(others.signer(&signed, &made_up).is_none(), "another key");
        assert!(Policies::default().signer(&signed, &made_up).is_none());
        let own = sas::read(sas::tests::OF_DEVICE).expect("a token");
        assert!(
            policies.signer(&own, &made_up).is_none(),
            "it names no policy"
        );
    }

    #[test]
    fn every_line_that_cannot_be_taken_is_named_without_its_keys() {
        let key = KEYS[0];
        let text = format!(
            "a:ServiceConnect\n:ServiceConnect:{key}\nb:Everything:{key}\nc:ServiceConnect:c2hvcnQ=\n\
             d:ServiceConnect:{key},{key},{key}\ne:ServiceConnect:{key}\ne:ServiceConnect:{key}\nf:ServiceConnect:"
        );
        let problems = Policies::parse(&text).expect_err("nearly all are wrong");
        let lines: Vec<usize> = problems.iter().map(|problem| problem.line).collect();
        assert_eq!(lines, [1, 2, 3, 4, 5, 7, 8]);
        assert!(
            problems
                .iter()
                .all(|problem| !problem.message.contains(key))
        );
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in any::<String>()) {
            let _ = Policies::parse(&text);
        }
    }
}
