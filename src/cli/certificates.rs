//! `quorumq certificates`: a small CA and certificates of nodes and clients, for those who have none.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};
use zeroize::Zeroizing;

use super::exit::{Failure, Outcome};
use super::output;
use crate::config::ClusterName;

/// Largest file of a CA that is read.
const LARGEST_FILE_BYTES: u64 = 1 << 20;

/// Certificates begin a little in the past: clocks differ.
const BACKDATED: Duration = Duration::from_secs(3_600);

/// One day.
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// Make a small CA, and certificates of nodes and clients.
#[derive(Args)]
pub struct Certificates {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Make a CA: ca.pem and ca.key. Keep the key where no node is.
    Ca(Ca),
    /// Make a node's certificate, for clients and for the other nodes: node-ID.pem and node-ID.key.
    Node(Node),
    /// Make a client's certificate: client-NAME.pem and client-NAME.key.
    Client(Client),
}

#[derive(Args)]
struct Place {
    /// Directory of the files.
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
}

#[derive(Args)]
struct Ca {
    #[command(flatten)]
    place: Place,

    /// Name of the CA.
    #[arg(long, default_value = "Quorumq CA")]
    name: String,

    /// Days until it expires.
    #[arg(long, value_name = "N", default_value_t = 3_650, value_parser = clap::value_parser!(u64).range(1..=36_500))]
    days: u64,
}

#[derive(Args)]
struct Node {
    #[command(flatten)]
    place: Place,

    /// Name of the cluster (cluster.name).
    #[arg(long, value_name = "NAME", default_value = "quorumq")]
    cluster: ClusterName,

    /// Number of the node (node.id).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=crate::config::bounds::MAX_NODE_ID))]
    id: u64,

    /// Host names and IP addresses under which clients and nodes reach it, comma separated or repeated.
    #[arg(
        long = "host",
        value_name = "HOST",
        value_delimiter = ',',
        default_value = "localhost"
    )]
    hosts: Vec<String>,

    /// Days until it expires.
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u64).range(1..=3_650))]
    days: u64,
}

#[derive(Args)]
struct Client {
    #[command(flatten)]
    place: Place,

    /// The client's name: the common name of its certificate.
    name: String,

    /// Days until it expires.
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u64).range(1..=3_650))]
    days: u64,
}

/// Runs the command.
pub fn run(arguments: Certificates) -> Outcome {
    match arguments.what {
        What::Ca(ca) => make_ca(&ca),
        What::Node(node) => make_node(&node),
        What::Client(client) => make_client(&client),
    }
}

fn make_ca(ca: &Ca) -> Outcome {
    let mut params = params(&ca.name, ca.days)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate().map_err(Failure::failed)?;
    let certificate = params.self_signed(&key).map_err(Failure::failed)?;
    write(&ca.place.directory, "ca", &certificate.pem(), &key)
}

fn make_node(node: &Node) -> Outcome {
    let name = format!("{} node {}", node.cluster, node.id);
    let mut params = params(&name, node.days)?;
    let identity = format!("quorumq://{}/nodes/{}", node.cluster, node.id);
    let identity = Ia5String::try_from(identity).map_err(Failure::failed)?;
    params.subject_alt_names = vec![SanType::URI(identity)];
    for host in &node.hosts {
        params.subject_alt_names.push(match host.parse::<IpAddr>() {
            Ok(ip) => SanType::IpAddress(ip),
            Err(_) => {
                let name = Ia5String::try_from(host.as_str());
                SanType::DnsName(name.map_err(Failure::failed)?)
            }
        });
    }
    // Towards other nodes it is a client, too.
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    issue(&node.place.directory, &format!("node-{}", node.id), params)
}

fn make_client(client: &Client) -> Outcome {
    let is_file_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '@');
    if client.name.is_empty() || !client.name.chars().all(is_file_name) {
        let text = "a client's name has letters, digits, dots, dashes, underscores and @";
        return Err(Failure::failed(text));
    }
    let mut params = params(&client.name, client.days)?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    issue(
        &client.place.directory,
        &format!("client-{}", client.name),
        params,
    )
}

fn params(name: &str, days: u64) -> Result<CertificateParams, Failure> {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.map_err(|_| Failure::failed("this machine's clock is before 1970"))?;
    // Whole seconds: a certificate has no others.
    let now = date_time_ymd(1970, 1, 1) + Duration::from_secs(now.as_secs());
    params.not_before = now - BACKDATED;
    params.not_after = now + DAY * u32::try_from(days).unwrap_or(u32::MAX);
    Ok(params)
}

/// Signs with the CA of the directory.
fn issue(directory: &Path, name: &str, mut params: CertificateParams) -> Outcome {
    let certificate = read(&directory.join("ca.pem"))?;
    let key = read(&directory.join("ca.key"))?;
    let broken = |error: rcgen::Error| {
        Failure::failed(format!("the CA of {}: {error}", directory.display()))
    };
    let key = KeyPair::from_pem(&key).map_err(broken)?;
    let issuer = Issuer::from_ca_cert_pem(&certificate, key).map_err(broken)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    let own = KeyPair::generate().map_err(Failure::failed)?;
    let certificate = params.signed_by(&own, &issuer).map_err(Failure::failed)?;
    write(directory, name, &certificate.pem(), &own)
}

fn read(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let explain = |error| {
        Failure::failed(format!(
            "{}: {error}; `quorumq certificates ca` makes a CA",
            path.display()
        ))
    };
    let mut text = Zeroizing::new(String::new());
    let file = File::open(path).map_err(explain)?;
    file.take(LARGEST_FILE_BYTES)
        .read_to_string(&mut text)
        .map_err(explain)?;
    Ok(text)
}

/// Writes a certificate and its key, and tells their names. What is there stays: a key is not made again by mistake.
fn write(directory: &Path, name: &str, certificate: &str, key: &KeyPair) -> Outcome {
    std::fs::create_dir_all(directory)?;
    let key = Zeroizing::new(key.serialize_pem());
    let files = [
        (directory.join(format!("{name}.key")), key.as_str(), 0o600),
        (directory.join(format!("{name}.pem")), certificate, 0o644),
    ];
    for (path, text, mode) in files {
        let explain = |error| Failure::failed(format!("{}: {error}", path.display()));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&path)
            .map_err(explain)?;
        file.write_all(text.as_bytes()).map_err(explain)?;
        file.sync_all().map_err(explain)?;
        output::line(path.display().to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use x509_parser::extensions::GeneralName;
    use x509_parser::parse_x509_certificate;

    use super::*;
    use crate::config::pem::certificates;
    use crate::config::{CertificatePair, ClientCertificates};
    use crate::transport::tls::{Files, ServerTls};

    #[test]
    fn a_ca_signs_nodes_and_clients() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path();
        let place = || Place {
            directory: path.to_owned(),
        };
        let node = Node {
            place: place(),
            cluster: "plant-7".parse().expect("a name"),
            id: 3,
            hosts: vec!["broker.example".into(), "::1".into()],
            days: 2,
        };
        assert!(make_node(&node).is_err(), "there is no CA");
        let ca = Ca {
            place: place(),
            name: "Plant".into(),
            days: 10,
        };
        make_ca(&ca).expect("an empty directory");
        assert!(make_ca(&ca).is_err(), "there is one");
        make_node(&node).expect("signed");
        let client = |name: &str| Client {
            place: place(),
            name: name.into(),
            days: 2,
        };
        make_client(&client("device-1")).expect("signed");
        assert!(make_client(&client("../x")).is_err());
        let mode = std::fs::metadata(path.join("node-3.key")).expect("it is there");
        assert_eq!(mode.permissions().mode() & 0o777, 0o600);
        let chain = certificates(&path.join("node-3.pem")).expect("PEM");
        let (_, parsed) = parse_x509_certificate(&chain[0]).expect("X.509");
        let names = parsed
            .subject_alternative_name()
            .expect("one")
            .expect("one");
        let names = &names.value.general_names;
        assert!(names.contains(&GeneralName::URI("quorumq://plant-7/nodes/3")));
        assert!(names.contains(&GeneralName::DNSName("broker.example")));
        let files = Files {
            certificates: vec![CertificatePair {
                certificate: path.join("node-3.pem"),
                key: path.join("node-3.key"),
            }],
            client_certificates: ClientCertificates::Required,
            client_ca_file: Some(path.join("ca.pem")),
            crl_files: Vec::new(),
            asks_everybody: false,
        };
        let tls = ServerTls::load(files, &["mqtt"]).expect("a server can use them");
        let left = tls.loaded().expiries[0].1.duration_since(SystemTime::now());
        assert!(left.is_ok_and(|left| left <= 2 * DAY && left > DAY));
    }
}
