//! `csrf`: what changes something has to come from a page that could read a cookie of this host.

use std::ops::Range;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rand::RngExt;
use schemars::JsonSchema;
use serde::Deserialize;
use subtle::ConstantTimeEq;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx, ResponseCx};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

/// The definition.
#[derive(Debug)]
pub(crate) struct Csrf;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// The secret that tokens are signed with. Gateways that share it take each other's tokens.
    #[schemars(length(min = 1))]
    key: String,
    /// Seconds for which a token is good, and after which the cookie goes. 0: a token is good for ever, the cookie as
    /// long as the browser keeps it.
    #[serde(default = "expires")]
    expires: u32,
    /// Name of the cookie, and of the request field that has to have the same value.
    #[serde(default = "name")]
    name: String,
}

fn expires() -> u32 {
    7200
}

fn name() -> String {
    "apisix-csrf-token".into()
}

impl Define for Csrf {
    const NAME: &'static str = "csrf";
    const PRIORITY: i32 = 2980;
    const PHASES: Phases = Phases::ACCESS.and(Phases::RESPONSE);
    const DOC: &'static str = "\
Protects against requests that a page of another origin makes a browser send (cross-site request forgery), by a cookie \
that is sent twice: every answer sets a cookie with a signed token, and a request with a method other than GET, HEAD and \
OPTIONS has to send it back as the cookie and, put there by a script of the page, in a field of the same name.

Otherwise the answer is 401, and its body tells what was wrong:

| body | |
|---|---|
| `{\"error_msg\":\"no csrf token in headers\"}` | there is no such field |
| `{\"error_msg\":\"no csrf cookie\"}` | there is no such cookie |
| `{\"error_msg\":\"csrf token mismatch\"}` | they are not the same |
| `{\"error_msg\":\"Failed to verify the csrf token signature\"}` | it was not signed with `key`, or is too old |

Tokens are those of APISIX: either gateway takes what the other one signed with the same `key`.";
    const EXAMPLE: &'static str = "\
key: edd1c9f034335f136f87ad84b625c8f1
expires: 3600
";

    type Conf = Conf;
    type ConsumerConf = ();

    const ENCRYPTED: &'static [&'static str] = &["key"];

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let field = cx.ok(conf.field())?;
        let set_cookie = FieldName::constant("Set-Cookie");
        Some(Compiled::ready(Guarded {
            field,
            key: conf.key.into_bytes(),
            expires: u64::from(conf.expires),
            set_cookie,
        }))
    }
}

impl Conf {
    fn field(&self) -> Result<FieldName, Invalid> {
        let message = "expected a name that a cookie and a field may have";
        FieldName::new(&self.name).ok_or_else(|| Invalid::new("name", message))
    }
}

/// An instance.
#[derive(Debug)]
struct Guarded {
    field: FieldName,
    key: Vec<u8>,
    expires: u64,
    set_cookie: FieldName,
}

impl Plugin for Guarded {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        // RFC 9110 section 9.2.1, without TRACE, which is never answered.
        if matches!(cx.request().method(), Method::Get | Method::Head | Method::Options) {
            return Flow::Continue;
        }
        let mut room = cx.take_scratch();
        let checked = self.check(cx, &mut room);
        cx.put_scratch(room);
        match checked {
            Ok(()) => Flow::Continue,
            Err(message) => {
                let answer = cx.reply(401).field("Content-Type", b"text/plain; charset=utf-8");
                answer.body(b"{\"error_msg\":\"").body(message.as_bytes()).body(b"\"}\n").done()
            }
        }
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        let mut room = cx.take_scratch();
        let cookie = self.write_cookie(cx.unix_ms() / 1000, &mut room);
        cx.add_field(&self.set_cookie, room.get(cookie..).unwrap_or_default());
        cx.put_scratch(room);
        Flow::Continue
    }
}

impl Guarded {
    fn check(&self, cx: &RequestCx<'_>, room: &mut Vec<u8>) -> Result<(), &'static str> {
        let request = cx.request();
        let field = request.field(&self.field).filter(|token| !token.is_empty()).ok_or("no csrf token in headers")?;
        let cookie = request.cookie(self.field.text()).ok_or("no csrf cookie")?;
        if !bool::from(field.ct_eq(cookie)) {
            return Err("csrf token mismatch");
        }
        let good = self.verifies(cookie, cx.unix_ms() / 1000, room);
        good.ok_or("Failed to verify the csrf token signature")
    }

    fn verifies(&self, token: &[u8], now: u64, room: &mut Vec<u8>) -> Option<()> {
        if token.len() > LONGEST {
            return None;
        }
        let mut json = [0; LONGEST];
        let len = STANDARD.decode_slice(token, &mut json).ok()?;
        let Token { random, issued, sign } = Token::parse(json.get(..len)?)?;
        let at: u64 = std::str::from_utf8(issued).ok()?.parse().ok()?;
        if self.expires > 0 && now.saturating_sub(at) > self.expires {
            return None;
        }
        for part in [&b"{expires:"[..], issued, b",random:", random] {
            room.extend_from_slice(part);
        }
        bool::from(self.sign(room).ct_eq(sign)).then_some(())
    }

    /// The signature of a token, in hexadecimal digits: `text` is what is signed, as far as it is no secret.
    fn sign(&self, text: &mut Vec<u8>) -> [u8; 64] {
        for part in [&b",key:"[..], &self.key, b"}"] {
            text.extend_from_slice(part);
        }
        let mut hex = [0; 64];
        for (two, byte) in hex.chunks_exact_mut(2).zip(digest(&SHA256, text).as_ref()) {
            for (digit, half) in two.iter_mut().zip([byte >> 4, byte & 15]) {
                *digit = if half < 10 { b'0' + half } else { b'a' + half - 10 };
            }
        }
        hex
    }

    /// Appends a cookie with a new token, and before it what it is made of; returns where the cookie begins.
    fn write_cookie(&self, now: u64, room: &mut Vec<u8>) -> usize {
        room.extend_from_slice(b"{expires:");
        let issued = appended(room, |room| weir_wire::push_number(room, now));
        room.extend_from_slice(b",random:");
        let random = appended(room, push_random);
        let sign = self.sign(room);

        let json = appended(room, |room| {
            room.extend_from_slice(b"{\"random\":");
            room.extend_from_within(random);
            room.extend_from_slice(b",\"expires\":");
            room.extend_from_within(issued);
            room.extend_from_slice(b",\"sign\":\"");
            room.extend_from_slice(&sign);
            room.extend_from_slice(b"\"}");
        });

        let cookie = room.len();
        room.extend_from_slice(self.field.text());
        room.push(b'=');
        let token = room.len();
        room.resize(token + json.len().div_ceil(3) * 4, 0);
        let (before, token) = room.split_at_mut(token);
        // The encoded text has exactly this length.
        let _ = STANDARD.encode_slice(before.get(json).unwrap_or_default(), token);
        room.extend_from_slice(b";path=/;SameSite=Lax");
        if self.expires > 0 {
            room.extend_from_slice(b";Expires=");
            push_cookie_date(room, now.saturating_add(self.expires));
        }
        cookie
    }
}

/// Appends a date as nginx writes it into cookies: `Tue, 14-Nov-23 22:14:20 GMT`, with all digits of a year after 2037.
fn push_cookie_date(room: &mut Vec<u8>, at: u64) {
    let date = appended(room, |room| weir_wire::date::push(room, at));
    // `Tue, 14 Nov 2023 22:14:20 GMT`: every date has this form.
    for dash in [7, 11] {
        if let Some(blank) = room.get_mut(date.start + dash) {
            *blank = b'-';
        }
    }
    let year = date.start + 12..date.start + 16;
    if room.get(year.clone()).is_some_and(|year| year <= &b"2037"[..]) {
        room.drain(year.start..year.start + 2);
    }
}

/// The range of the text that `append` appends.
fn appended(room: &mut Vec<u8>, append: impl FnOnce(&mut Vec<u8>)) -> Range<usize> {
    let from = room.len();
    append(room);
    from..room.len()
}

/// Appends a number between 0 and 1. It has as many digits as Lua reads and writes of one, none of which is a 0 that
/// Lua would leave out: APISIX signs the number as it writes it.
fn push_random(out: &mut Vec<u8>) {
    const DIGITS: usize = 14;
    out.extend_from_slice(b"0.");
    let mut left = rand::rng().random_range(0..9_u64.pow(DIGITS as u32));
    for _ in 0..DIGITS {
        out.push(b'1' + (left % 9) as u8);
        left /= 9;
    }
}

/// The longest token that is looked at; one of this gateway's or of APISIX's has some 160 bytes.
const LONGEST: usize = 512;

/// A token, decoded.
#[derive(Debug, PartialEq)]
struct Token<'t> {
    /// A number, in the digits in which it was signed.
    random: &'t [u8],
    /// The time of issue, in seconds since 1970.
    issued: &'t [u8],
    sign: &'t [u8],
}

impl<'t> Token<'t> {
    /// Reads the JSON object of a token in the one form in which it is written: without blanks, of numbers and of a
    /// text without escapes. The numbers go into what is signed as they stand, so they may hold nothing but a number.
    fn parse(json: &'t [u8]) -> Option<Self> {
        let (mut random, mut issued, mut sign) = (None, None, None);
        for member in json.strip_prefix(b"{")?.strip_suffix(b"}")?.split(|b| *b == b',') {
            let colon = member.iter().position(|b| *b == b':')?;
            let (name, value) = (member.get(..colon)?, member.get(colon + 1..)?);
            let is_number = |value: &[u8]| value.iter().all(|b| matches!(b, b'0'..=b'9' | b'.' | b'-' | b'+' | b'e'));
            let again = match name {
                b"\"random\"" if is_number(value) => random.replace(value),
                b"\"expires\"" if is_number(value) => issued.replace(value),
                b"\"sign\"" => sign.replace(value.strip_prefix(b"\"")?.strip_suffix(b"\"")?),
                _ => return None,
            };
            if again.is_some() {
                return None;
            }
        }
        Some(Self { random: random?, issued: issued?, sign: sign? })
    }
}

#[cfg(test)]
mod tests {
    use super::{Guarded, Token, push_cookie_date, push_random};
    use weir_wire::name::FieldName;

    fn guarded(expires: u64) -> Guarded {
        let name = |name| FieldName::new(name).unwrap();
        Guarded { field: name("csrf"), key: b"userkey".to_vec(), expires, set_cookie: name("Set-Cookie") }
    }

    #[test]
    fn a_token_of_apisix_is_taken() {
        // Made by the rule in Python: the SHA-256 of {expires:…,random:…,key:…}, in base64 with what is signed.
        let token = b"eyJyYW5kb20iOjAuNzMxNSwic2lnbiI6ImM3ODUyNmU3ZjVjOGU1Mjg4YWRlZDI0YWE3OGEzZTI0N2JiMzRjN2U1Nz\
            E2ZTBlMDIyZjQ3ZTNiZGI1YzMwOGEiLCJleHBpcmVzIjoyMDAwMDAwMDAwfQ==";
        for (expires, now, good) in [
            (7200, 1_700_000_000, true),
            (7200, 2_000_000_000 + 7200, true),
            (7200, 2_000_000_000 + 7201, false),
            (0, u64::MAX, true),
        ] {
            let verified = guarded(expires).verifies(token, now, &mut Vec::new());
            assert_eq!(verified.is_some(), good, "{expires} {now}");
        }
        let other = Guarded { key: b"userkez".to_vec(), ..guarded(7200) };
        assert!(other.verifies(token, 1_700_000_000, &mut Vec::new()).is_none());
    }

    #[test]
    fn own_tokens_are_taken_while_they_are_good() {
        let guarded = guarded(60);
        for _ in 0..100 {
            let mut room = Vec::new();
            let from = guarded.write_cookie(1_700_000_000, &mut room);
            let cookie = String::from_utf8(room.split_off(from)).unwrap();
            let (token, rest) = cookie.strip_prefix("csrf=").unwrap().split_once(';').unwrap();
            assert_eq!(rest, "path=/;SameSite=Lax;Expires=Tue, 14-Nov-23 22:14:20 GMT");
            let verifies = |token: &str, now| guarded.verifies(token.as_bytes(), now, &mut Vec::new()).is_some();
            assert!(verifies(token, 1_700_000_060));
            assert!(!verifies(token, 1_700_000_061));
            assert!(!verifies(&token[4..], 1_700_000_000));
            assert!(!verifies(&token.replace('=', ""), 1_700_000_000) || !token.contains('='));
        }
    }

    #[test]
    fn dates_are_as_nginx_writes_them_into_cookies() {
        for (at, text) in [
            (0, "Thu, 01-Jan-70 00:00:00 GMT"),
            (1_700_000_060, "Tue, 14-Nov-23 22:14:20 GMT"),
            (2_145_916_799, "Thu, 31-Dec-37 23:59:59 GMT"),
            (2_145_916_800, "Fri, 01-Jan-2038 00:00:00 GMT"),
            (u64::MAX, "Fri, 31-Dec-9999 23:59:59 GMT"),
        ] {
            let mut out = b"x".to_vec();
            push_cookie_date(&mut out, at);
            assert_eq!(&out[1..], text.as_bytes());
        }
    }

    #[test]
    fn tokens_are_read_in_one_form() {
        let token = Token { random: b"0.5", issued: b"17", sign: b"ab" };
        for json in [r#"{"random":0.5,"expires":17,"sign":"ab"}"#, r#"{"sign":"ab","expires":17,"random":0.5}"#] {
            assert_eq!(Token::parse(json.as_bytes()).as_ref(), Some(&token), "{json}");
        }
        for json in [
            "",
            "{}",
            r#"{"random":0.5,"expires":17}"#,
            r#"{"random":0.5,"expires":17,"sign":"ab""#,
            r#"{"random":0.5,"expires":17,"sign":"ab"}}"#,
            r#"{"random":0.5,"expires":17,"sign":"ab","sign":"ab"}"#,
            r#"{"random":0.5,"expires":17,"sign":"ab","more":1}"#,
            r#"{"random":0.5 ,"expires":17,"sign":"ab"}"#,
            r#"{"random":"0.5","expires":17,"sign":"ab"}"#,
            r#"{"random":0.5,"expires":17,"sign":ab}"#,
            r#"{"random":0.5,key:x,"expires":17,"sign":"ab"}"#,
            r#"["random":0.5,"expires":17,"sign":"ab"]"#,
        ] {
            assert_eq!(Token::parse(json.as_bytes()), None, "{json}");
        }
    }

    #[test]
    fn a_random_number_is_as_lua_writes_it() {
        for _ in 0..1000 {
            let mut out = Vec::new();
            push_random(&mut out);
            let text = String::from_utf8(out).unwrap();
            assert_eq!(text.len(), 16, "{text}");
            assert!(!text[2..].contains('0') && text.starts_with("0."), "{text}");
        }
    }
}
