//! What an operator can rely on when a configuration is read.

use std::io::Write;

use super::*;

fn flag(set: &str) -> Flag {
    Flag::parse_set(set).expect("the test writes section.key=value")
}

fn with_file(text: &str, environment: &[(&str, &str)], flags: &[&str]) -> Result<Loaded, Problems> {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(text.as_bytes()).expect("a writable file");
    load(&Sources {
        file: Some(file.path().to_owned()),
        environment: environment
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect(),
        flags: flags.iter().map(|set| flag(set)).collect(),
    })
}

fn problems(text: &str) -> Vec<Problem> {
    with_file(text, &[], &[])
        .expect_err("the file has problems")
        .0
}

fn line(problem: &Problem) -> usize {
    match &problem.origin {
        Origin::File { line, .. } => *line,
        other => panic!("{problem} has the origin {other}"),
    }
}

#[test]
fn defaults_are_a_single_node_without_problems() {
    let loaded = load(&Sources::default()).expect("the defaults are valid");
    assert!(loaded.config.is_single_node());
    assert_eq!(loaded.config.mqtt.listen[0].to_string(), "127.0.0.1:1883");
    assert!(
        loaded
            .origins
            .values()
            .all(|origin| *origin == Origin::Default)
    );
}

#[test]
fn every_default_is_inside_its_own_range() {
    for key in keys() {
        let value = key.show(&Config::default());
        let document = format!("{} = {value}\n", key.name);
        if let Err(problems) = with_file(&document, &[], &[]) {
            panic!("{document}{problems}");
        }
    }
}

#[test]
fn flags_win_over_the_environment_and_the_environment_over_the_file() {
    let file = "[mqtt]\nreceive_maximum = 10\nmax_keep_alive_s = 20\ntopic_alias_maximum = 30\n";
    let environment = [
        ("QUORUMQ__MQTT__MAX_KEEP_ALIVE_S", "21"),
        ("QUORUMQ__MQTT__TOPIC_ALIAS_MAXIMUM", "31"),
        ("PATH", "ignored"),
    ];
    let loaded = with_file(file, &environment, &["mqtt.topic_alias_maximum=32"])
        .expect("all values are valid");
    let mqtt = &loaded.config.mqtt;
    assert_eq!(
        (
            mqtt.receive_maximum,
            mqtt.max_keep_alive_s,
            mqtt.topic_alias_maximum
        ),
        (10, 21, 32)
    );
    assert!(matches!(
        loaded.origins["mqtt.receive_maximum"],
        Origin::File { line: 2, .. }
    ));
    assert_eq!(
        loaded.origins["mqtt.max_keep_alive_s"],
        Origin::Environment("QUORUMQ__MQTT__MAX_KEEP_ALIVE_S".into())
    );
    assert_eq!(
        loaded.origins["mqtt.topic_alias_maximum"],
        Origin::Flag("--set".into())
    );
}

#[test]
fn an_unknown_key_names_the_nearest_one_and_its_line() {
    let found = problems("[mqtt]\nlisten = \"127.0.0.1:1\"\nrecieve_maximum = 3\n");
    assert_eq!(found.len(), 1);
    assert_eq!(line(&found[0]), 3);
    assert_eq!(
        found[0].hint.as_deref(),
        Some("did you mean mqtt.receive_maximum?")
    );
}

#[test]
fn an_unknown_section_names_the_nearest_one() {
    let found = problems("\n[clutser]\nname = \"a\"\n");
    assert_eq!((found.len(), line(&found[0])), (1, 2));
    assert_eq!(found[0].hint.as_deref(), Some("did you mean [cluster]?"));
}

#[test]
fn an_unknown_variable_is_an_error_too() {
    let found = with_file("", &[("QUORUMQ__NODE__IDD", "2")], &[]).expect_err("no such key");
    assert_eq!(found.0[0].hint.as_deref(), Some("did you mean node.id?"));
}

#[test]
fn every_problem_is_reported_at_once_in_the_order_of_the_lines() {
    let found = problems(
        "[node]\nid = 0\n[cluster]\nelection_min_ms = 10\nmembers = [{ id = 1 }]\n[mqtt]\nlisten = \"nowhere\"\n[log]\nlevel = \"loud\"\n",
    );
    let lines: Vec<_> = found.iter().map(line).collect();
    assert_eq!(lines, [2, 4, 5, 7, 9]);
    assert!(
        found.iter().all(|problem| problem.hint.is_some()),
        "{found:?}"
    );
}

#[test]
fn text_that_is_not_toml_is_reported_with_its_line() {
    let found = problems("[node]\nid = \n[mqtt]\nlisten = 3\n");
    assert_eq!(line(&found[0]), 2);
    assert!(found.iter().any(|problem| problem.key == "mqtt.listen"));
}

#[test]
fn members_are_read_from_toml_and_from_text() {
    let toml = with_file(
        "[cluster]\nmembers = [{ id = 1, address = \"a:1\" }, { id = 2, address = \"[::1]:2\" }]\n",
        &[],
        &[],
    )
    .expect("valid members");
    let text = with_file("", &[("QUORUMQ__CLUSTER__MEMBERS", "1=a:1,2=[::1]:2")], &[])
        .expect("valid members");
    assert_eq!(toml.config.cluster.members, text.config.cluster.members);
    assert_eq!(
        toml.config.cluster.members[1].address.to_string(),
        "[::1]:2"
    );
    assert_eq!(toml.config.advertised().to_string(), "a:1");
}

#[test]
fn rules_over_several_values_name_what_to_change() {
    let cases = [
        ("cluster.election_min_ms=100", "cluster.election_min_ms"),
        ("cluster.election_max_ms=150", "cluster.election_max_ms"),
        ("cluster.give_up_ms=5000", "cluster.give_up_ms"),
        ("cluster.members=2=a:1", "node.id"),
        ("cluster.members=1=a:1,1=b:1", "cluster.members"),
        ("cluster.members=1=0.0.0.0:1", "cluster.members"),
        ("cluster.join=0.0.0.0:1", "cluster.join"),
        ("http.listen=127.0.0.1:1883", "http.listen"),
        ("cluster.listen=0.0.0.0:1883", "cluster.listen"),
        ("mqtt.outbox_max_bytes=5000", "mqtt.outbox_max_bytes"),
        ("mqtt.listen=", "mqtt.listen"),
        ("cluster.listen=10.0.0.1:7883", "cluster.listen"),
        ("cluster.listen=[::]:7883", "cluster.listen"),
        ("cluster.listen=node1:7883", "cluster.listen"),
        ("cluster.certificate=node.pem", "cluster.key"),
        ("cluster.ca_file=ca.pem", "cluster.certificate"),
    ];
    for (set, key) in cases {
        let found = with_file("", &[], &[set]).expect_err(set).0;
        assert_eq!(found[0].key, key, "{set}");
        assert_eq!(found[0].origin, Origin::Flag("--set".into()), "{set}");
    }
}

#[test]
fn a_node_makes_a_cluster_or_joins_one() {
    let joins = with_file("", &[], &["cluster.join=a:1,b:1"]).expect("a node that joins");
    assert!(!joins.config.is_single_node());
    let both = ["cluster.members=1=a:1", "cluster.join=b:1"];
    let found = with_file("", &[], &both).expect_err("both").0;
    assert_eq!((found.len(), found[0].key.as_str()), (1, "cluster.join"));
    let unreachable = ["cluster.join=b:1", "cluster.listen=0.0.0.0:7883"];
    let found = with_file("", &[], &unreachable)
        .expect_err("no address to tell")
        .0;
    assert_eq!(found[0].key, "cluster.advertise");
}

#[test]
fn a_cluster_port_that_others_reach_needs_proof_or_the_operators_word() {
    let public = "cluster.listen=0.0.0.0:7883";
    let accepted: [&[&str]; 6] = [
        &["cluster.listen=localhost:7883"],
        &["cluster.listen=127.9.9.9:7883"],
        &["cluster.listen=[::1]:7883"],
        &[public, "cluster.insecure=true"],
        &[public, "cluster.secret_file=secret"],
        &[
            public,
            "cluster.certificate=node.pem",
            "cluster.key=node.key",
            "cluster.ca_file=ca.pem",
        ],
    ];
    for flags in accepted {
        assert!(with_file("", &[], flags).is_ok(), "{flags:?}");
    }
    let all = "cluster.certificate=a,cluster.key=b,cluster.ca_file=c";
    for (more, key) in [
        ("cluster.secret_file=secret", "cluster.secret_file"),
        ("cluster.insecure=true", "cluster.insecure"),
    ] {
        let flags: Vec<&str> = all.split(',').chain([more]).collect();
        let found = with_file("", &[], &flags).expect_err(more).0;
        assert_eq!((found.len(), found[0].key.as_str()), (1, key));
    }
    let revoked = with_file("", &[], &["cluster.crl_files=a.pem"]);
    let found = revoked.expect_err("there are no certificates").0;
    assert_eq!(
        (found.len(), found[0].key.as_str()),
        (1, "cluster.crl_files")
    );
}

#[test]
fn a_hub_without_tls_is_for_this_machine_only() {
    let named = "hub.host_names=hub.example.com";
    let accepted: [&[&str]; 5] = [
        &[named],
        &[named, "hub.allow_plaintext=true"],
        &[named, "mqtt.listen=0.0.0.0:1883"],
        &[
            named,
            "hub.https_listen=127.0.0.1:8443",
            "hub.allow_plaintext=true",
        ],
        &[
            named,
            "hub.https_listen=0.0.0.0:8443",
            "hub.https_certificates=[{ certificate = \"a\", key = \"b\" }]",
        ],
    ];
    for flags in accepted {
        assert!(with_file("", &[], flags).is_ok(), "{flags:?}");
    }
    let refused: [(&[&str], &str); 7] = [
        (&["hub.host_names=hub.example.com:8883"], "hub.host_names"),
        (&["hub.host_names=h,H"], "hub.host_names"),
        (&["hub.policies_file=p"], "hub.policies_file"),
        (&["hub.allow_plaintext=true"], "hub.allow_plaintext"),
        (
            &[named, "hub.https_listen=127.0.0.1:8443"],
            "hub.https_listen",
        ),
        (
            &[
                named,
                "hub.allow_plaintext=true",
                "mqtt.listen=0.0.0.0:1883",
            ],
            "hub.allow_plaintext",
        ),
        (
            &[
                named,
                "hub.allow_plaintext=true",
                "hub.https_listen=0.0.0.0:8443",
            ],
            "hub.https_listen",
        ),
    ];
    for (flags, key) in refused {
        let found = with_file("", &[], flags).expect_err(key).0;
        assert_eq!(found[0].key, key, "{flags:?}");
    }
}

#[test]
fn a_missing_file_is_a_problem_not_a_default() {
    let sources = Sources {
        file: Some("/nonexistent/quorumq.toml".into()),
        ..Sources::default()
    };
    let found = load(&sources).expect_err("the file does not exist").0;
    assert!(found[0].message.contains("cannot be read"));
}

#[test]
fn the_identity_of_a_cluster_follows_its_name_unless_given() {
    let one = Config::default().cluster;
    let mut other = one.clone();
    other.name = "other".parse().expect("a valid name");
    assert_eq!(one.identity(), Config::default().cluster.identity());
    assert_ne!(one.identity(), other.identity());
    other.id = Some(one.identity());
    assert_eq!(one.identity(), other.identity());
}

#[test]
fn the_example_file_sets_nothing_and_is_valid() {
    let uncommented = example().replace("#", "# ");
    assert_eq!(
        with_file(&uncommented, &[], &[])
            .expect("only comments")
            .config,
        Config::default()
    );
}

#[test]
fn the_example_file_without_its_comment_signs_is_the_default() {
    let text: String = example()
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(rest) if !rest.starts_with(' ') => format!("{rest}\n"),
            Some(_) => String::new(),
            None => format!("{line}\n"),
        })
        .collect();
    assert_eq!(
        with_file(&text, &[], &[]).expect("all defaults").config,
        Config::default()
    );
}

#[test]
fn the_reference_page_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
    let page = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        page == markdown(),
        "docs/configuration.md is not current: quorumq reference configuration > docs/configuration.md"
    );
}

#[test]
fn a_listener_is_a_table_and_each_problem_has_its_line() {
    let text = "[[listeners]]\nname = \"a\"\naddress = \"unix:/run/q\"\nunix_mode = \"0600\"\n\
                [[listeners]]\nname = \"b\"\naddress = \"127.0.0.1:1884\"\nauthentication = [\"scram\"]\n";
    let config = with_file(text, &[], &[]).expect("two listeners").config;
    let listeners = config.listeners();
    assert_eq!(listeners.len(), 2, "mqtt.listen is not set");
    assert_eq!(listeners[0].address.to_string(), "unix:/run/q");
    assert_eq!(listeners[0].file_mode(), FileMode(0o600));
    assert_eq!(listeners[1].file_mode(), FileMode(0o660));
    assert_eq!(listeners[1].url_path(), "/mqtt");
    assert_eq!(listeners[1].authentication, [AuthenticationMethod::Scram]);
    let shown = keys()
        .iter()
        .find(|key| key.name == "listeners")
        .map(|key| key.show(&config));
    let again = with_file(
        "",
        &[("QUORUMQ__LISTENERS", &shown.expect("there is such a key"))],
        &[],
    );
    assert_eq!(again.expect("what is shown can be read").config, config);
    let found = problems(
        "[[listeners]]\nname = \"a b\"\n[[listeners]]\nadress = \"x:1\"\nunix_mode = \"9\"\n",
    );
    let hints: Vec<_> = found
        .iter()
        .map(|one| (line(one), one.hint.as_deref()))
        .collect();
    assert!(
        hints.contains(&(4, Some("did you mean address?"))),
        "{found:?}"
    );
    assert!(hints.iter().any(|(line, _)| *line == 5), "{found:?}");
    let text = "[mqtt]\nlisten = \"a:1\"\n[[listeners]]\nname = \"b\"\n";
    let both = with_file(text, &[], &[]);
    assert_eq!(both.expect("both").config.listeners().len(), 2);
}

#[test]
fn a_listener_asks_for_what_belongs_together() {
    let of = |keys: &str| with_file(&format!("[[listeners]]\nname = \"a\"\n{keys}"), &[], &[]);
    for keys in [
        "transport = \"tls\"",
        "client_ca_file = \"ca.pem\"",
        "client_certificates = \"required\"",
        "authentication = [\"certificate\"]",
        "authentication = [\"anonymous\", \"password\"]",
        "websocket_path = \"/other\"",
        "websocket_path = \"/mqtt\"",
        "unix_mode = \"0660\"",
        "crl_files = [\"a.pem\"]",
        "address = \"127.0.0.1:8080\"",
        "max_packet_size_bytes = 127",
    ] {
        let found = of(keys).expect_err(keys).0;
        assert!(
            found
                .iter()
                .all(|one| one.key == "listeners" || one.key == "http.listen"),
            "{found:?}"
        );
    }
    let found = of("max_qos = 3").expect_err("there is none").0;
    assert_eq!(found[0].key, "listeners.max_qos", "{found:?}");
}

#[test]
fn a_listener_that_lets_other_machines_in_unasked_is_known() {
    let found = |text: &str| {
        let config = with_file(text, &[], &[]).expect(text).config;
        let names = config.listeners_for_everybody().into_iter();
        names.map(|one| one.name).collect::<Vec<_>>()
    };
    assert!(found("").is_empty(), "loopback");
    assert_eq!(found("[mqtt]\nlisten = \"0.0.0.0:1883\"\n"), ["default"]);
    let listener = |name: &str, rest: &str| format!("[[listeners]]\nname = \"{name}\"\n{rest}\n");
    let public = "address = \"10.0.0.1:1884\"";
    let text = [
        listener("unix", "address = \"unix:/run/q\""),
        listener("local", "authentication = [\"anonymous\"]"),
        listener("open", public),
        listener(
            "asks",
            &format!(
                "{}\nauthentication = [\"password\"]",
                public.replace('4', "5")
            ),
        ),
        listener(
            "falls-back",
            &format!(
                "{}\nauthentication = [\"scram\", \"anonymous\"]",
                public.replace('4', "6")
            ),
        ),
    ]
    .concat();
    assert_eq!(found(&text), ["open", "falls-back"]);
    let with_users = format!("[auth]\nscram_file = \"users\"\n{text}");
    assert_eq!(found(&with_users), ["falls-back"]);
}

proptest::proptest! {
    #[test]
    fn no_text_makes_the_loader_panic(text in "[\\PC\n\\[\\]={}\".]{0,200}") {
        let _ = with_file(&text, &[("QUORUMQ__CLUSTER__MEMBERS", &text)], &[&format!("mqtt.listen={text}")]);
    }
}

#[test]
fn response_information_must_fit_the_beginning_of_a_topic() {
    let long = format!("[mqtt]\nresponse_information = \"{}\"", "x".repeat(1025));
    for text in [
        "[mqtt]\nresponse_information = \"clients/+\"",
        "[mqtt]\nresponse_information = \"a\\u0000\"",
        &long,
    ] {
        let found = problems(text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].key, "mqtt.response_information");
    }
    let empty = with_file("[mqtt]\nresponse_information = \"\"", &[], &[]);
    assert!(empty.is_ok_and(|loaded| loaded.config.mqtt.response_information.is_empty()));
}
