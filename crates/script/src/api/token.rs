//! Signatures of JSON Web Tokens (RFC 7518 section 3), for `resty.jwt`.

use aws_lc_rs::hmac;
use aws_lc_rs::signature::{self, UnparsedPublicKey, VerificationAlgorithm};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mlua::{Error, Lua, LuaString, Result, Table};

use super::digest::keyed;

pub(super) fn add(lua: &Lua, raw: &Table) -> Result<()> {
    raw.set(
        "verify_signature",
        lua.create_function(|_, (name, key, text, signature): (String, LuaString, LuaString, LuaString)| {
            verify(&name, &key.as_bytes(), &text.as_bytes(), &signature.as_bytes())
        })?,
    )?;
    raw.set(
        "sign",
        lua.create_function(|lua, (name, key, text): (String, LuaString, LuaString)| {
            let algorithm =
                secret(&name).ok_or_else(|| Error::runtime(format!("tokens cannot be signed with {name}")))?;
            lua.create_string(hmac::sign(&hmac::Key::new(algorithm, &key.as_bytes()), &text.as_bytes()))
        })?,
    )
}

/// The keyed hash of an algorithm with a secret.
fn secret(name: &str) -> Option<hmac::Algorithm> {
    keyed(&format!("sha{}", name.strip_prefix("HS")?)).filter(|_| matches!(name, "HS256" | "HS384" | "HS512"))
}

/// The verification of an algorithm with a public key.
fn public(name: &str) -> Option<&'static dyn VerificationAlgorithm> {
    Some(match name {
        "RS256" => &signature::RSA_PKCS1_2048_8192_SHA256,
        "RS384" => &signature::RSA_PKCS1_2048_8192_SHA384,
        "RS512" => &signature::RSA_PKCS1_2048_8192_SHA512,
        "PS256" => &signature::RSA_PSS_2048_8192_SHA256,
        "PS384" => &signature::RSA_PSS_2048_8192_SHA384,
        "PS512" => &signature::RSA_PSS_2048_8192_SHA512,
        "ES256" => &signature::ECDSA_P256_SHA256_FIXED,
        "ES384" => &signature::ECDSA_P384_SHA384_FIXED,
        "ES512" => &signature::ECDSA_P521_SHA512_FIXED,
        "EdDSA" => &signature::ED25519,
        _ => return None,
    })
}

/// True if this is the signature of a text. A key that is a PEM block is a public key and nothing else: were it a secret
/// for another algorithm, whoever knows it could sign (RFC 8725 section 2.1).
fn verify(name: &str, key: &[u8], text: &[u8], signature: &[u8]) -> Result<bool> {
    const BEGIN: &[u8] = b"-----BEGIN PUBLIC KEY-----";
    let is_pem = key.windows(5).any(|window| window == b"-----");
    match (secret(name), public(name), is_pem) {
        (Some(algorithm), _, false) => Ok(hmac::verify(&hmac::Key::new(algorithm, key), text, signature).is_ok()),
        (_, Some(algorithm), true) => {
            let Some(at) = key.windows(BEGIN.len()).position(|window| window == BEGIN) else {
                return Err(Error::runtime("expected a public key in PEM: -----BEGIN PUBLIC KEY-----"));
            };
            let block = key.get(at + BEGIN.len()..).unwrap_or_default();
            let block = block.split(|byte| *byte == b'-').next().unwrap_or_default();
            let block: Vec<u8> = block.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
            let der = STANDARD.decode(block).map_err(|_| Error::runtime("a public key in PEM cannot be read"))?;
            Ok(UnparsedPublicKey::new(algorithm, &der).verify(text, signature).is_ok())
        }
        _ => Ok(false),
    }
}
