//! A server that speaks TLS only.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use trove_streams::{Connection, DownReason, StoreUrl, TlsDial};

use crate::harness::{Server, down_because, free_port, quick, run, temp_dir, up};

/// A root of its own in `dir`, and a certificate for `localhost` that it signed.
fn make_certificates(dir: &Path) {
    let openssl = |words: &str| {
        let status = Command::new("openssl")
            .args(words.split(' '))
            .current_dir(dir)
            .stderr(Stdio::null())
            .status();
        assert!(
            status.expect("openssl can be run").success(),
            "openssl {words}"
        );
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!(
        "req -x509 {key} -keyout root.key -out root.pem -subj /CN=root -days 2"
    ));
    openssl(&format!(
        "req -new {key} -keyout server.key -out server.csr -subj /CN=localhost"
    ));
    std::fs::write(
        dir.join("names"),
        "subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n",
    )
    .expect("the temporary directory can be written");
    openssl(
        "x509 -req -in server.csr -CA root.pem -CAkey root.key -CAcreateserial -out server.pem -days 2 -extfile names",
    );
}

fn trusting(root: Option<&Path>) -> Arc<TlsDial> {
    let mut roots = RootCertStore::empty();
    if let Some(root) = root {
        roots
            .add(CertificateDer::from_pem_file(root).unwrap())
            .unwrap();
    }
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(TlsDial::new(Arc::new(config)))
}

#[tokio::test]
async fn a_server_is_reached_over_tls_and_its_certificate_is_checked() {
    let dir = temp_dir();
    make_certificates(&dir);
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let port = free_port();
    let _server = Server::with(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &path("server.pem"),
        "--tls-key-file",
        &path("server.key"),
        "--tls-ca-cert-file",
        &path("root.pem"),
        "--tls-auth-clients",
        "no",
    ]);
    let url: StoreUrl = format!("rediss://localhost:{port}").parse().unwrap();
    let trusted = Connection::to_over(&url, trusting(Some(&dir.join("root.pem"))), quick())
        .unwrap()
        .start();
    up(&trusted).await;
    assert_eq!(run::<String>(&trusted, &["PING"]).await, "PONG");
    let unknown = Connection::to_over(&url, trusting(None), quick())
        .unwrap()
        .start();
    down_because(&unknown, |reason| matches!(reason, DownReason::Dial(_))).await;
    let address: StoreUrl = format!("rediss://127.0.0.1:{port}").parse().unwrap();
    let other_name = Connection::to_over(&address, trusting(Some(&dir.join("root.pem"))), quick())
        .unwrap()
        .start();
    down_because(&other_name, |reason| matches!(reason, DownReason::Dial(_))).await;
    let _ = std::fs::remove_dir_all(&dir);
}
