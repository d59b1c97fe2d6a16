//! Signatures of requests to Amazon's services: Signature Version 4.

use aws_lc_rs::{digest, hmac};

use crate::hex;

/// Whose signature it is, and for which service.
#[derive(Clone)]
pub(crate) struct Signer {
    pub(crate) key: String,
    pub(crate) secret: String,
    pub(crate) region: String,
    pub(crate) service: String,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signer").field("region", &self.region).finish_non_exhaustive()
    }
}

/// A request to be signed. The path is encoded as it is sent.
#[derive(Debug)]
pub(crate) struct Signed<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    /// Arguments, encoded and in the order of names.
    pub(crate) query: &'a str,
    /// Fields by their names in lower case, in the order of names.
    pub(crate) fields: &'a [(&'a str, &'a str)],
    pub(crate) body: &'a [u8],
    /// Time as `20150830T123600Z`.
    pub(crate) time: &'a str,
}

impl Signer {
    /// Value of `Authorization`.
    pub(crate) fn authorization(&self, signed: &Signed<'_>) -> String {
        let names: Vec<&str> = signed.fields.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let fields: String = signed.fields.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
        // Each segment is encoded once more than it is sent, except with S3.
        let path = encoded_again(signed.path);
        let canonical = format!(
            "{}\n{path}\n{}\n{fields}\n{names}\n{}",
            signed.method,
            signed.query,
            hex::encode(digest::digest(&digest::SHA256, signed.body).as_ref())
        );
        let day = signed.time.get(..8).unwrap_or_default();
        let scope = format!("{day}/{}/{}/aws4_request", self.region, self.service);
        let digest = hex::encode(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
        let text = format!("AWS4-HMAC-SHA256\n{}\n{scope}\n{digest}", signed.time);
        let mut key = format!("AWS4{}", self.secret).into_bytes();
        for part in [day, &self.region, &self.service, "aws4_request"] {
            key = sign(&key, part.as_bytes());
        }
        let signature = hex::encode(&sign(&key, text.as_bytes()));
        format!("AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}", self.key)
    }
}

fn sign(key: &[u8], text: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text).as_ref().to_vec()
}

/// A path with its segments encoded (RFC 3986 section 2.3), once more where they are already.
fn encoded_again(path: &str) -> String {
    encoded_bytes(path.as_bytes())
}

/// The same for a path of any bytes.
pub(crate) fn encoded_bytes(path: &[u8]) -> String {
    let mut out = Vec::with_capacity(path.len());
    for byte in path {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'/') {
            out.push(*byte);
        } else {
            weir_wire::target::push_escape(&mut out, *byte);
        }
    }
    String::from_utf8(out).unwrap_or_default()
}

/// A name as a segment of a path.
pub(crate) fn encoded(segment: &str) -> String {
    encoded_again(segment).replace('/', "%2F")
}

/// A time as requests tell it.
pub(crate) fn time_of(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    time.unwrap_or_default().strftime("%Y%m%dT%H%M%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::{Signed, Signer, encoded, encoded_again, time_of};

    /// The example of Amazon's own description of the signature.
    #[test]
    fn the_published_example_has_its_signature() {
        let signer = Signer {
            key: "AKIDEXAMPLE".into(),
            secret: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY".into(),
            region: "us-east-1".into(),
            service: "iam".into(),
        };
        let fields = [
            ("content-type", "application/x-www-form-urlencoded; charset=utf-8"),
            ("host", "iam.amazonaws.com"),
            ("x-amz-date", "20150830T123600Z"),
        ];
        let signed = Signed {
            method: "GET",
            path: "/",
            query: "Action=ListUsers&Version=2010-05-08",
            fields: &fields,
            body: b"",
            time: "20150830T123600Z",
        };
        assert_eq!(
            signer.authorization(&signed),
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/iam/aws4_request, \
             SignedHeaders=content-type;host;x-amz-date, \
             Signature=5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"
        );
    }

    #[test]
    fn paths_and_times_are_written_as_signed() {
        assert_eq!(encoded("arn:aws:x/y"), "arn%3Aaws%3Ax%2Fy");
        assert_eq!(encoded_again("/a/arn%3Aaws"), "/a/arn%253Aaws");
        assert_eq!(time_of(1_440_938_160), "20150830T123600Z");
    }
}
