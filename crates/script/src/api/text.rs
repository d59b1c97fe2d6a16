//! Texts: base64, percent-encoding, hexadecimal digits.

use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use mlua::{Lua, LuaString, Result, Table};

/// As OpenResty reads and writes base64: with padding, which may lack when it is read.
const STANDARD: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::STANDARD, CONFIG);
const URL: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::URL_SAFE, CONFIG.with_encode_padding(false));
const CONFIG: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);

pub(super) fn add(lua: &Lua, raw: &Table) -> Result<()> {
    raw.set(
        "encode_base64",
        lua.create_function(|lua, (text, no_padding): (LuaString, Option<bool>)| {
            let mut encoded = STANDARD.encode(text.as_bytes());
            if no_padding == Some(true) {
                encoded.truncate(encoded.trim_end_matches('=').len());
            }
            lua.create_string(encoded)
        })?,
    )?;
    raw.set("decode_base64", decoder(lua, &STANDARD)?)?;
    raw.set(
        "encode_base64url",
        lua.create_function(|lua, text: LuaString| lua.create_string(URL.encode(text.as_bytes())))?,
    )?;
    raw.set("decode_base64url", decoder(lua, &URL)?)?;
    raw.set(
        "escape_uri",
        lua.create_function(|lua, (text, kind): (LuaString, Option<i64>)| {
            lua.create_string(escape(&text.as_bytes(), kind == Some(0)))
        })?,
    )?;
    raw.set(
        "unescape_uri",
        lua.create_function(|lua, text: LuaString| lua.create_string(unescape(&text.as_bytes())))?,
    )?;
    raw.set("hex", lua.create_function(|lua, text: LuaString| lua.create_string(hex(&text.as_bytes())))?)
}

fn decoder(lua: &Lua, engine: &'static GeneralPurpose) -> Result<mlua::Function> {
    lua.create_function(|lua, text: LuaString| {
        engine.decode(text.as_bytes()).ok().map(|text| lua.create_string(text)).transpose()
    })
}

/// Hexadecimal digits of bytes, in lower case.
pub(super) fn hex(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    let digit = |at: u8| DIGITS.get(usize::from(at & 15)).copied().unwrap_or_default();
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

/// Encodes a part of a URI, or a whole one: then what separates parts stays.
fn escape(text: &[u8], is_whole: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for byte in text {
        let stays =
            byte.is_ascii_alphanumeric() || b"-_.~!*'()".contains(byte) || is_whole && b":/?#[]@$&+,;=%".contains(byte);
        if stays {
            out.push(*byte);
        } else {
            out.push(b'%');
            out.extend(hex(&[*byte]).to_ascii_uppercase());
        }
    }
    out
}

/// Decodes a part of a URI, in which `+` is a blank.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let digit = |at: usize| tail.get(at).and_then(|byte| (*byte as char).to_digit(16));
        rest = tail;
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                rest = tail.get(2..).unwrap_or_default();
            }
            (b'+', ..) => out.push(b' '),
            _ => out.push(*first),
        }
    }
    out
}
