//! The keys of the section `hub`.

use std::path::PathBuf;

use super::definition::section;
use super::setting::{Address, CertificatePair};

section! {
    /// Device and module twins, and who they belong to: the connections of devices and modules, and the HTTPS API of
    /// back ends (docs/spec/hub-connections.md).
    hub: HubConfig {
        /// Names of the hub that clients are given, accepted in user names and in tokens; the first label of the first
        /// one is the name of the hub. Empty: there is no hub. The same on every node.
        host_names: Vec<String> = Vec::new(), "";
        /// Where the HTTPS API is served. Empty: nowhere.
        https_listen: Option<Address> = None, "";
        /// Certificates of the HTTPS API with their keys, PEM. They are read again when they change.
        https_certificates: Vec<CertificatePair> = Vec::new(), "";
        /// File of the shared access policies, one in a line: `name:PERMISSION,…:KEY[,KEY]`. Permissions are
        /// `RegistryRead`, `RegistryWrite`, `ServiceConnect` and `DeviceConnect`; a key is base64 of 16 to 64 bytes.
        /// Empty lines and lines that begin with `#` are skipped. Other users of the machine must not be able to read
        /// it. It is read when the node starts; give every node the same file.
        policies_file: Option<PathBuf> = None, "";
        /// PEM: the CAs whose certificates show devices and modules that are registered with the type
        /// `certificateAuthority`. Read again when it changes, and on SIGHUP; the same on every node. Who is connected
        /// stays until the certificate ends.
        client_ca_file: Option<PathBuf> = None, "";
        /// Devices of the whole cluster; one more is refused.
        max_devices: u64 = 1_000_000, "devices", 1..=u64::MAX;
        /// Retained messages of one device or module, alike on every node; one more is not retained. They go with it.
        max_retained: u32 = 16, "messages", 0..=u64::from(u32::MAX);
        /// Whether devices, modules and back ends may connect without TLS: for tests, and only where no listener
        /// without TLS is reached from other machines.
        allow_plaintext: bool = false, "";
    }
}
