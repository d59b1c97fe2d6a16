//! SCRAM (RFC 5802, RFC 7677) as a client, which PostgreSQL, MongoDB and Kafka ask for.

use std::num::NonZeroU32;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{Algorithm, SHA256, SHA512, digest};
use aws_lc_rs::{hmac, pbkdf2};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The beginning of an exchange without channel binding.
const GS2: &str = "n,,";
/// Rounds that a server may ask for: fewer are too weak, more take too long.
const ROUNDS: std::ops::RangeInclusive<u32> = 1_000..=10_000_000;

/// The hash of a mechanism.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hash {
    /// SCRAM-SHA-256
    Sha256,
    /// SCRAM-SHA-512
    Sha512,
}

impl Hash {
    fn algorithms(self) -> (pbkdf2::Algorithm, hmac::Algorithm, &'static Algorithm) {
        match self {
            Self::Sha256 => (pbkdf2::PBKDF2_HMAC_SHA256, hmac::HMAC_SHA256, &SHA256),
            Self::Sha512 => (pbkdf2::PBKDF2_HMAC_SHA512, hmac::HMAC_SHA512, &SHA512),
        }
    }
}

/// An exchange.
pub(crate) struct Scram {
    hash: Hash,
    /// The client's first message without its beginning.
    first: String,
    nonce: String,
    password: String,
    /// The signature that the server has to show.
    expected: Option<hmac::Tag>,
}

impl Scram {
    /// Begins an exchange.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub(crate) fn new(hash: Hash, user: &str, password: &str) -> Result<Self, String> {
        let mut bytes = [0; 18];
        aws_lc_rs::rand::fill(&mut bytes).map_err(|_| "the system gives no random bytes".to_owned())?;
        Ok(Self::with(hash, user, password, &STANDARD.encode(bytes)))
    }

    fn with(hash: Hash, user: &str, password: &str, nonce: &str) -> Self {
        let user = user.replace('=', "=3D").replace(',', "=2C");
        let (nonce, password) = (nonce.to_owned(), password.to_owned());
        Self { hash, first: format!("n={user},r={nonce}"), nonce, password, expected: None }
    }

    /// The first message.
    pub(crate) fn first(&self) -> String {
        format!("{GS2}{}", self.first)
    }

    /// The answer to the server's first message.
    ///
    /// # Errors
    /// The server's message is none of such an exchange.
    pub(crate) fn answer(&mut self, server: &str) -> Result<String, String> {
        let wrong = || "the server's SCRAM message is wrong".to_owned();
        let field = |name: &str| server.split(',').find_map(|field| field.strip_prefix(name));
        let nonce =
            field("r=").filter(|nonce| nonce.starts_with(&self.nonce) && *nonce != self.nonce).ok_or_else(wrong)?;
        let salt = field("s=").and_then(|salt| STANDARD.decode(salt).ok()).ok_or_else(wrong)?;
        let rounds = field("i=").and_then(|rounds| rounds.parse().ok()).filter(|rounds| ROUNDS.contains(rounds));
        let rounds = rounds.and_then(NonZeroU32::new).ok_or_else(wrong)?;
        let (derived, signed, digested) = self.hash.algorithms();
        let mut salted = vec![0; digested.output_len()];
        pbkdf2::derive(derived, rounds, &salt, self.password.as_bytes(), &mut salted);
        let sign = |key: &[u8], text: &[u8]| hmac::sign(&hmac::Key::new(signed, key), text);
        let client_key = sign(&salted, b"Client Key");
        let stored_key = digest(digested, client_key.as_ref());
        let last = format!("c={},r={nonce}", STANDARD.encode(GS2));
        let whole = format!("{},{server},{last}", self.first);
        let signature = sign(stored_key.as_ref(), whole.as_bytes());
        let proof: Vec<u8> = client_key.as_ref().iter().zip(signature.as_ref()).map(|(a, b)| a ^ b).collect();
        let server_key = sign(&salted, b"Server Key");
        self.expected = Some(sign(server_key.as_ref(), whole.as_bytes()));
        Ok(format!("{last},p={}", STANDARD.encode(proof)))
    }

    /// Checks the server's last message.
    ///
    /// # Errors
    /// The server refuses the password, or does not know it.
    pub(crate) fn finish(&self, server: &str) -> Result<(), String> {
        if let Some(reason) = server.split(',').find_map(|field| field.strip_prefix("e=")) {
            return Err(format!("the server refuses the password: {reason}"));
        }
        let shown = server.split(',').find_map(|field| field.strip_prefix("v="));
        let shown = shown.and_then(|shown| STANDARD.decode(shown).ok()).unwrap_or_default();
        let is_right = |tag: &hmac::Tag| verify_slices_are_equal(tag.as_ref(), &shown).is_ok();
        if self.expected.as_ref().is_some_and(is_right) {
            return Ok(());
        }
        Err("the server has not shown that it knows the password".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::{Hash, Scram};

    /// The example of RFC 7677 section 3.
    #[test]
    fn the_exchange_is_that_of_the_standard() {
        let mut scram = Scram::with(Hash::Sha256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO");
        assert_eq!(scram.first(), "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let server = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        let answer = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
        assert_eq!(scram.answer(server).as_deref(), Ok(answer));
        assert_eq!(scram.finish("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="), Ok(()));
        for wrong in ["v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G8=", "", "v=", "e=invalid-proof"] {
            assert!(scram.finish(wrong).is_err(), "{wrong}");
        }
        for wrong in
            ["", "r=other,s=W22Z,i=4096", "r=rOprNGfwEbeRWgbNEkqO,s=W22Z,i=4096", "r=rOprNGfwEbeRWgbNEkqOx,s=W22Z,i=1"]
        {
            assert!(scram.answer(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_longer_hash_is_used_as_well() {
        let mut scram = Scram::with(Hash::Sha512, "user", "pencil", "rOprNGfwEbeRWgbNEkqO");
        let server = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        // Computed with another implementation.
        let proof = "gMGXRcevScNtxZ6/8lQYpGtnsNAc3mGcmNomv+xnoOMw+3R2xNJdMNnzMlTN8PPC6wdp6dybEmDYXYTxwnYPJQ==";
        let answer = format!("c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p={proof}");
        assert_eq!(scram.answer(server), Ok(answer));
        let shown = "v=ZQnYEgWQMFmmsM8aQMF0nDDCy/AgCzkwk8CmMZYcMg0vSVlKDanekLtifDSeVGT4+5ZxXnJq199RVG2rR7N7Zw==";
        assert_eq!(scram.finish(shown), Ok(()));
    }
}
