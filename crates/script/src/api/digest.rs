//! Digests and signatures with a secret.

use aws_lc_rs::{digest, hmac};
use mlua::{Error, Lua, LuaString, Result, Table};

pub(super) fn add(lua: &Lua, raw: &Table) -> Result<()> {
    raw.set(
        "digest",
        lua.create_function(|lua, (name, text): (String, LuaString)| {
            let text = text.as_bytes();
            if name == "md5" {
                return lua.create_string(md5::compute(&*text).0);
            }
            let algorithm = match &*name {
                "sha1" => &digest::SHA1_FOR_LEGACY_USE_ONLY,
                "sha224" => &digest::SHA224,
                "sha256" => &digest::SHA256,
                "sha384" => &digest::SHA384,
                "sha512" => &digest::SHA512,
                _ => return Err(Error::runtime(format!("there is no digest {name}"))),
            };
            lua.create_string(digest::digest(algorithm, &text))
        })?,
    )?;
    raw.set(
        "hmac",
        lua.create_function(|lua, (name, key, text): (String, LuaString, LuaString)| {
            let algorithm = keyed(&name).ok_or_else(|| Error::runtime(format!("there is no HMAC with {name}")))?;
            lua.create_string(hmac::sign(&hmac::Key::new(algorithm, &key.as_bytes()), &text.as_bytes()))
        })?,
    )?;
    raw.set("crc32", lua.create_function(|_, text: LuaString| Ok(crc32fast::hash(&text.as_bytes())))?)?;
    raw.set(
        "random",
        lua.create_function(|lua, length: usize| {
            if length > 1 << 16 {
                return Err(Error::runtime("at most 65536 random bytes can be made at a time"));
            }
            let mut bytes = vec![0; length];
            rand::RngExt::fill(&mut rand::rng(), bytes.as_mut_slice());
            lua.create_string(bytes)
        })?,
    )
}

/// The keyed hash with this name.
pub(super) fn keyed(name: &str) -> Option<hmac::Algorithm> {
    Some(match name {
        "sha1" => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
        "sha224" => hmac::HMAC_SHA224,
        "sha256" => hmac::HMAC_SHA256,
        "sha384" => hmac::HMAC_SHA384,
        "sha512" => hmac::HMAC_SHA512,
        _ => return None,
    })
}
