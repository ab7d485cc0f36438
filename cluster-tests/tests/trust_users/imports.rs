//! Users that are taken over from files.

use super::*;

/// Made with OpenSSL as `mosquitto_passwd` does it: of "pencil".
const MOSQUITTO: &str = "# made by mosquitto_passwd\n\
    pbkdf2:$7$101$AAECAwQFBgcICQoL$itntC8QS4iuE06UG7o0PxU0qM5UBFdNFBtAux6ya3Syz6oR19T2jx8EIwdBkk+3zME8xITagvpZst1brmEBXRQ==\n\
    sha512:$6$AAECAwQFBgcICQoL$rRzn37trE3g/BjzdN2mmtKsUjbdiQp6JD9blv4UHWyEGk5h7UCh8xJCi6Kfnkhoq2n9xbnqkIfqD5tBAb7eLdQ==\n";

pub fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    file.write_all(text.as_bytes()).expect("it can be written");
    file
}

fn import(cluster: &Cluster, format: &str, file: &tempfile::NamedTempFile) -> Json {
    let path = file.path().to_str().expect("temporary paths are text");
    done(
        cluster,
        1,
        &["user", "import", "--format", format, path],
        "",
    )
}

pub fn a_password_file_of_mosquitto_is_imported_and_replaced(cluster: &Cluster) {
    let file = file(MOSQUITTO);
    let answer = import(cluster, "mosquitto", &file);
    assert_eq!(answer["added"], 2, "{answer}");
    let answer = import(cluster, "mosquitto", &file);
    assert_eq!((&answer["added"], &answer["kept"]), (&0.into(), &2.into()));
    for name in ["pbkdf2", "sha512"] {
        let node = cluster.mqtt(2);
        assert_eq!(code_at(node, V311, name, "wrong"), 5);
        assert_eq!(
            scram(node, Algorithm::Sha256, name, "pencil").code,
            0x87,
            "not yet"
        );
        let mut first = logged_in(node, &format!("first-{name}"), name, "pencil");
        wait::until("the hash to be replaced", TIMEOUT, || {
            let shown = done(cluster, 0, &["user", "show", name], "");
            (shown["password"] == "argon2id").then_some(())
        });
        first.expect_nothing();
        // The same file says nothing new: the hash stays a strong one, and whoever is logged in goes on.
        let path = file.path().to_str().expect("temporary paths are text");
        let again = ["user", "import", "--format", "mosquitto", "--replace", path];
        let again = done(cluster, 1, &again, "");
        assert_eq!((&again["replaced"], &again["kept"]), (&0.into(), &2.into()));
        let shown = done(cluster, 0, &["user", "show", name], "");
        assert_eq!(shown["password"], "argon2id");
        first.expect_nothing();
        assert_eq!(code_at(cluster.mqtt(0), V5, name, "pencil"), 0);
        assert_eq!(code_at(cluster.mqtt(0), V5, name, "wrong"), 0x87);
        wait::until("verifiers everywhere", TIMEOUT, || {
            let logs_in = |node| scram(node, Algorithm::Sha512, name, "pencil").code == 0;
            cluster.addresses().into_iter().all(logs_in).then_some(())
        });
    }
}

pub fn a_file_of_verifiers_is_imported(cluster: &Cluster) {
    let made = |name: &str| {
        let mut process = Command::new(binary())
            .args(["password", name, "--iterations", "5000"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary can be run");
        let mut stdin = process.stdin.take().expect("it is piped");
        stdin.write_all(b"pencil\n").expect("it reads");
        drop(stdin);
        let output = process.wait_with_output().expect("it was started");
        String::from_utf8(output.stdout).expect("a line is text")
    };
    let file = file(&(made("verified") + &made("verified-too")));
    assert_eq!(import(cluster, "scram", &file)["added"], 2);
    for name in ["verified", "verified-too"] {
        for node in cluster.addresses() {
            assert_eq!(scram(node, Algorithm::Sha256, name, "pencil").code, 0);
            assert_eq!(code_at(node, V311, name, "wrong"), 5);
        }
        assert_eq!(code_at(cluster.mqtt(1), V311, name, "pencil"), 0);
    }
    let listed = run(cluster, 2, &["user", "list"], "");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for name in ["anna", "pbkdf2", "verified", "verified-too"] {
        assert!(listed.contains(&format!("\"{name}\"")), "{name}: {listed}");
    }
    assert!(!listed.contains("leaving"), "it was deleted: {listed}");
}
