//! Ids: UUIDs as written, and those that follow from names, by which configurations without ids stay comparable.

use std::fmt::Write as _;

use aws_lc_rs::digest;

/// Namespace of the ids that Kong makes from names in declarative configurations.
const NAMESPACE: &str = "fd02801f-0957-4a15-a55a-c8d9606f30b5";

/// UUID version 5 (RFC 9562 section 5.5) of an entity without an id, from its kind and the field that names it.
pub(crate) fn from_name(kind: &str, name: &str) -> String {
    version_5(&version_5(NAMESPACE, kind), name)
}

fn version_5(namespace: &str, name: &str) -> String {
    let mut text = bytes_of(namespace);
    text.extend_from_slice(name.as_bytes());
    let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, &text);
    let mut id: Vec<u8> = hash.as_ref().iter().copied().take(16).collect();
    if let Some(version) = id.get_mut(6) {
        *version = *version & 0x0f | 0x50;
    }
    if let Some(variant) = id.get_mut(8) {
        *variant = *variant & 0x3f | 0x80;
    }
    let mut written = String::with_capacity(36);
    for (at, byte) in id.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            written.push('-');
        }
        let _ = write!(written, "{byte:02x}");
    }
    written
}

fn bytes_of(id: &str) -> Vec<u8> {
    let digits: Vec<u8> = id.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks_exact(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect()
}

#[cfg(test)]
mod tests {
    use super::version_5;

    #[test]
    fn ids_from_names_are_those_of_the_standard() {
        // RFC 9562 appendix A.4.
        let dns = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
        assert_eq!(version_5(dns, "www.example.com"), "2ed6657d-e927-568b-95e1-2665a8aea6a2");
    }
}
