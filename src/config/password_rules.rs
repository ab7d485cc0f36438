//! Rules of `[auth]` that concern passwords and failed log-ins.

use ipnet::IpNet;

use super::finding::Finding;
use super::keys::Config;
use crate::auth::password::Cost;

/// Every broken rule.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let auth = &config.auth;
    let mut found = Vec::new();
    let cost = Cost {
        memory_kib: auth.password_memory_kib,
        passes: auth.password_passes,
        lanes: 1,
    };
    if !cost.is_allowed() {
        found.push(Finding {
            keys: vec!["auth.password_memory_kib", "auth.password_passes"],
            message: format!(
                "{} KiB in {} passes is more than one log-in may cost",
                cost.memory_kib, cost.passes
            ),
            hint: "at most 524288 KiB together, for example 131072 KiB in 4 passes".into(),
        });
    }
    for network in &auth.failures_exempt {
        if network.parse::<IpNet>().is_err() {
            found.push(Finding {
                keys: vec!["auth.failures_exempt"],
                message: format!("{network:?} is no network"),
                hint: "for example \"10.0.0.0/8\" or \"10.1.2.3/32\"".into(),
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_log_in_may_cost_is_bounded_and_networks_are_networks() {
        let mut config = Config::default();
        assert!(findings(&config).is_empty());
        config.auth.password_memory_kib = 131_072;
        config.auth.password_passes = 5;
        assert_eq!(findings(&config).len(), 1);
        config.auth.failures_exempt = vec!["10.0.0.0/8".into(), "10.0.0.1".into()];
        assert_eq!(findings(&config).len(), 2);
    }
}
