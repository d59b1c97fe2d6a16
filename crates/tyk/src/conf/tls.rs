//! TLS of the gateway's own port: `http_server_options`.

use serde_json::Value;

use super::pointer;

/// Certificates that the gateway shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// They with their names; the first is shown where no other has the name that a client asks for.
    pub certificates: Vec<ServerCertificate>,
    /// True if only TLS 1.3 is spoken (`min_version` 772).
    pub only_latest: bool,
}

/// A certificate by its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerCertificate {
    /// Name of its host; empty: any.
    pub name: String,
    /// Path of the certificate in PEM.
    pub cert: String,
    /// Path of its key in PEM.
    pub key: String,
}

/// TLS 1.3 as a number of the protocol (RFC 8446 section 4.2.1).
const TLS_1_3: u64 = 772;

/// Reads the settings; `None` without `use_ssl`.
///
/// # Errors
/// Certificates are not in files, or a file is missing in the settings.
pub(super) fn read(conf: &Value) -> Result<Option<Tls>, String> {
    let at = |field: &str| pointer(conf, &format!("http_server_options.{field}"));
    if at("use_ssl") != Some(&Value::Bool(true)) {
        return Ok(None);
    }
    for (field, reason) in [
        ("use_ssl_le", "certificates are not ordered from Let's Encrypt"),
        ("ssl_certificates", "ids of certificates in Tyk's store are not looked up"),
    ] {
        let is_on =
            at(field).is_some_and(|value| *value == true || value.as_array().is_some_and(|ids| !ids.is_empty()));
        if is_on {
            return Err(format!(
                "http_server_options.{field}: {reason}: name files in http_server_options.certificates"
            ));
        }
    }
    let mut certificates = Vec::new();
    for (number, entry) in at("certificates").and_then(Value::as_array).into_iter().flatten().enumerate() {
        let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
        let certificate =
            ServerCertificate { name: text("domain_name"), cert: text("cert_file"), key: text("key_file") };
        for (field, path) in [("cert_file", &certificate.cert), ("key_file", &certificate.key)] {
            if path.is_empty() {
                return Err(format!(
                    "http_server_options.certificates[{number}].{field}: expected the path of a file in PEM"
                ));
            }
        }
        certificates.push(certificate);
    }
    if certificates.is_empty() {
        return Err("http_server_options.certificates: expected one at least, with cert_file and key_file".to_owned());
    }
    let only_latest = at("min_version").and_then(Value::as_u64).is_some_and(|version| version >= TLS_1_3);
    Ok(Some(Tls { certificates, only_latest }))
}

impl Tls {
    /// Paths of all files.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.certificates.iter().flat_map(|certificate| [certificate.cert.as_str(), certificate.key.as_str()])
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::read;

    #[test]
    fn faults_name_their_fields() {
        let file = json!({"cert_file": "c.pem", "key_file": "k.pem"});
        for (options, expected) in [
            (json!({"use_ssl": true}), "http_server_options.certificates: expected one"),
            (
                json!({"use_ssl": true, "certificates": [{"cert_file": "c.pem"}]}),
                "http_server_options.certificates[0].key_file",
            ),
            (json!({"use_ssl": true, "use_ssl_le": true, "certificates": [file]}), "http_server_options.use_ssl_le"),
            (json!({"use_ssl": true, "ssl_certificates": ["x"]}), "http_server_options.ssl_certificates"),
        ] {
            let fault = read(&json!({"http_server_options": options})).expect_err("a fault");
            assert!(fault.starts_with(expected), "{fault}");
        }
        let good = json!({"http_server_options": {"use_ssl": true, "ssl_certificates": [], "min_version": 772, "certificates": [file]}});
        assert!(read(&good).expect("no fault").is_some_and(|tls| tls.only_latest && tls.paths().count() == 2));
        assert_eq!(read(&json!({"http_server_options": {"certificates": [{}]}})), Ok(None));
    }
}
