//! Certificates and keys in PEM: in files, and embedded in a configuration.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use weir_config::file;

/// A certificate and its key.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) cert: String,
    pub(crate) key: String,
}

/// The text of a file.
pub(crate) fn of_file(path: &str) -> Result<String, String> {
    file::read_text(std::path::Path::new(path)).map_err(|error| format!("cannot read {path}: {error}"))
}

/// The text of a data URL: `data:application/x-x509-ca-cert;name=a.pem;base64,…`.
pub(crate) fn embedded(url: &str) -> Result<String, String> {
    let read = || {
        let (head, data) = url.strip_prefix("data:")?.split_once(',')?;
        let bytes = STANDARD.decode(data.trim()).ok().filter(|_| head.ends_with(";base64"))?;
        String::from_utf8(bytes).ok().filter(|text| text.contains("-----BEGIN"))
    };
    read().ok_or_else(|| "expected a data URL in base64 with a text in PEM".to_owned())
}

#[cfg(test)]
mod tests {
    use super::embedded;

    #[test]
    fn certificates_are_embedded_as_data() {
        let url = "data:application/x-x509-ca-cert;name=a.pem;base64,LS0tLS1CRUdJTiBYLS0tLS0=";
        assert_eq!(embedded(url).as_deref(), Ok("-----BEGIN X-----"));
        assert!(embedded("data:text/plain,x").is_err() && embedded("data:;base64,eHg=").is_err());
    }
}
