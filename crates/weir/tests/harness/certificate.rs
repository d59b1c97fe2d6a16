//! Certificates of several kinds, made by openssl for one test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A folder with certificates.
pub(crate) struct Authority {
    folder: TempDir,
}

/// A certificate with its key, as PEM.
#[derive(Clone)]
pub(crate) struct Certificate {
    pub(crate) cert: String,
    pub(crate) key: String,
    /// The files of the certificate and its key, for programs that read files.
    pub(crate) cert_file: PathBuf,
    pub(crate) key_file: PathBuf,
}

/// A kind of key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Rsa,
    P256,
    P384,
    Ed25519,
}

impl Kind {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Rsa => &["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"],
            Self::P256 => &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
            Self::P384 => &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384"],
            Self::Ed25519 => &["-algorithm", "ED25519"],
        }
    }
}

impl Authority {
    /// An authority of its own.
    pub(crate) fn new() -> Self {
        let authority = Self { folder: tempfile::tempdir().expect("create a folder") };
        authority.key("ca", Kind::P256);
        let subject = "/CN=Authority of a test";
        authority
            .openssl(&["req", "-x509", "-new", "-key", "ca.key", "-days", "30", "-subj", subject, "-out", "ca.pem"]);
        authority
    }

    /// The file of the authority's certificate.
    pub(crate) fn file(&self) -> PathBuf {
        self.path("ca.pem")
    }

    pub(crate) fn pem(&self) -> String {
        fs::read_to_string(self.file()).expect("read a certificate")
    }

    /// A certificate for these names, the first of which is its subject.
    pub(crate) fn certificate(&self, kind: Kind, names: &[&str]) -> Certificate {
        self.signed("ca", kind, names, "")
    }

    /// A certificate with further extensions, lines in openssl's form.
    pub(crate) fn extended(&self, kind: Kind, names: &[&str], extensions: &str) -> Certificate {
        self.signed("ca", kind, names, extensions)
    }

    /// The authority's own certificate and key.
    pub(crate) fn own(&self) -> Certificate {
        self.read("ca")
    }

    /// A certificate followed by this number of intermediate certificates up to the authority.
    pub(crate) fn chained(&self, intermediates: usize, name: &str) -> Certificate {
        let mut issuer = "ca".to_owned();
        let mut chain = String::new();
        for number in 0..intermediates {
            let between = format!("between-{name}-{number}");
            let made = self.signed(&issuer, Kind::P256, &[&between], "basicConstraints=critical,CA:TRUE\n");
            chain.insert_str(0, &made.cert);
            issuer = between;
        }
        let mut made = self.signed(&issuer, Kind::P256, &[name], "");
        made.cert.push_str(&chain);
        fs::write(&made.cert_file, &made.cert).expect("write a chain");
        made
    }

    /// A certificate of X.509 version 1, valid for `days`, as `openssl x509 -req` makes it without extensions.
    pub(crate) fn version_one(&self, kind: Kind, name: &str, days: i32) -> Certificate {
        let stem = format!("one-{name}-{kind:?}-{days}");
        let file = |suffix: &str| format!("{stem}.{suffix}");
        self.key(&stem, kind);
        self.openssl(&["req", "-new", "-key", &file("key"), "-subj", &format!("/CN={name}"), "-out", &file("csr")]);
        let (csr, pem, days) = (file("csr"), file("pem"), days.to_string());
        let issuer = ["-CA", "ca.pem", "-CAkey", "ca.key", "-days", &days];
        self.openssl(&[&["x509", "-req", "-in", &csr, "-out", &pem], &issuer[..]].concat());
        let made = self.read(&stem);
        let text = Command::new("openssl").args(["x509", "-noout", "-text", "-in"]).arg(&made.cert_file).output();
        let text = text.expect("run openssl").stdout;
        assert!(String::from_utf8_lossy(&text).contains("Version: 1 "), "openssl makes version 1 without extensions");
        made
    }

    fn signed(&self, issuer: &str, kind: Kind, names: &[&str], extensions: &str) -> Certificate {
        let stem = names[0].replace('*', "any");
        // The file name may belong to a certificate of another kind for the same name.
        let stem = if self.path(&format!("{stem}.key")).exists() { format!("{stem}-{kind:?}") } else { stem };
        self.key(&stem, kind);
        let file = |suffix: &str| format!("{stem}.{suffix}");
        let alternatives: Vec<String> = names.iter().map(|name| format!("DNS:{name}")).collect();
        fs::write(self.path(&file("ext")), format!("{extensions}subjectAltName={}\n", alternatives.join(",")))
            .expect("write extensions");
        let subject = format!("/CN={}", names[0]);
        self.openssl(&["req", "-new", "-key", &file("key"), "-subj", &subject, "-out", &file("csr")]);
        self.openssl(&[
            "x509",
            "-req",
            "-in",
            &file("csr"),
            "-CA",
            &format!("{issuer}.pem"),
            "-CAkey",
            &format!("{issuer}.key"),
            "-days",
            "30",
            "-extfile",
            &file("ext"),
            "-out",
            &file("pem"),
        ]);
        self.read(&stem)
    }

    fn read(&self, stem: &str) -> Certificate {
        let [cert_file, key_file] = ["pem", "key"].map(|suffix| self.path(&format!("{stem}.{suffix}")));
        let read = |file: &Path| fs::read_to_string(file).expect("read what openssl made");
        Certificate { cert: read(&cert_file), key: read(&key_file), cert_file, key_file }
    }

    fn key(&self, stem: &str, kind: Kind) {
        let out = format!("{stem}.key");
        self.openssl(&[&["genpkey"], kind.arguments(), &["-out", &out]].concat());
    }

    fn openssl(&self, arguments: &[&str]) {
        let done = Command::new("openssl")
            .args(arguments)
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .output()
            .expect("run openssl");
        assert!(done.status.success(), "openssl {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::join(self.folder.path(), name)
    }
}
