//! The names of the hub.

/// Names that clients are given for the hub, in lower case; empty where there is no hub.
#[derive(Clone, Debug, Default)]
pub struct Hosts(Vec<Box<str>>);

impl Hosts {
    /// Those that are configured.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Hosts {
        let names = names.into_iter();
        Hosts(names.map(|name| name.to_ascii_lowercase().into()).collect())
    }

    /// Whether a host, with any port or none, is the hub. Case does not matter.
    pub fn contains(&self, host: &str) -> bool {
        let host = without_port(host);
        let mut names = self.0.iter();
        names.any(|name| name.eq_ignore_ascii_case(host))
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_compared_without_case_and_port() {
        let hosts = Hosts::new(["Hub.example.com", "alias"]);
        for host in [
            "hub.example.com",
            "HUB.EXAMPLE.COM:8883",
            "alias:1",
            "ALIAS",
        ] {
            assert!(hosts.contains(host), "{host}");
        }
        for host in [
            "",
            ":8883",
            "hub.example.com.",
            "example.com",
            "hub.example.com:x",
            "aliasx",
        ] {
            assert!(!hosts.contains(host), "{host}");
        }
    }
}
