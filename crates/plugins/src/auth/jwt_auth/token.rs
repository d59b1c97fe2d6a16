//! A token taken apart (RFC 7515 section 3.1, RFC 7519), strictly: what is not a JSON web token in compact form is
//! none.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The parts of a token, decoded.
#[derive(Debug)]
pub(crate) struct Token<'t> {
    /// The signed text: the first two parts as received.
    pub(crate) signed: &'t [u8],
    /// The name of its algorithm.
    pub(crate) algorithm: Cow<'t, str>,
    pub(crate) claims: Claims<'t>,
    pub(crate) signature: &'t [u8],
}

/// The claims that are looked at.
#[derive(Debug)]
pub(crate) struct Claims<'t> {
    /// The one that names the consumer.
    pub(crate) key: Key<'t>,
    /// Seconds since 1970, perhaps with a fraction (RFC 7519 section 2), as `nbf`.
    pub(crate) exp: Option<f64>,
    pub(crate) nbf: Option<f64>,
}

/// The claim that names the consumer.
#[derive(Debug, PartialEq)]
pub(crate) enum Key<'t> {
    Absent,
    Text(Cow<'t, str>),
    /// A value that is no text, and so nobody's key.
    Other,
}

impl<'t> Token<'t> {
    /// Takes a token apart; `room` takes what is decoded, and `key` is the claim that names the consumer. Its length is
    /// bounded by that of the head it came in, and what is not looked at is skipped without recursion.
    pub(crate) fn parse(text: &'t [u8], key: &str, room: &'t mut Vec<u8>) -> Option<Self> {
        let mut dots = text.iter().enumerate().filter(|(_, b)| **b == b'.').map(|(at, _)| at);
        let (first, second) = (dots.next()?, dots.next()?);
        if dots.next().is_some() {
            return None;
        }
        let mut decode = |from: usize, to: usize| {
            // Without padding, and with no bits to spare: a token has one form (RFC 7515 section 2).
            URL_SAFE_NO_PAD.decode_vec(text.get(from..to)?, room).ok()?;
            Some(room.len())
        };
        let header = decode(0, first)?;
        let payload = decode(first + 1, second)?;
        let end = decode(second + 1, text.len())?;
        let room = room.as_slice();
        let Header { alg, crit } = object(room.get(..header)?, PhantomData::<Header<'_>>)?;
        // RFC 7515 section 4.1.11: an extension that has to be understood, and none is.
        if crit.is_some() {
            return None;
        }
        let claims = object(room.get(header..payload)?, Wanted { key })?;
        Some(Self { signed: text.get(..second)?, algorithm: alg, claims, signature: room.get(payload..end)? })
    }
}

/// The fields of the header that are read; a name that comes twice is a fault.
#[derive(Debug, Deserialize)]
struct Header<'t> {
    #[serde(borrow)]
    alg: Cow<'t, str>,
    crit: Option<IgnoredAny>,
}

/// Reads a whole JSON object.
fn object<'t, S: DeserializeSeed<'t>>(json: &'t [u8], seed: S) -> Option<S::Value> {
    // A list would be taken for the fields of a struct in their order.
    if json.trim_ascii_start().first() != Some(&b'{') {
        return None;
    }
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let value = seed.deserialize(&mut deserializer).ok()?;
    deserializer.end().ok()?;
    Some(value)
}

/// Reads claims, of which `key` names the consumer.
struct Wanted<'k> {
    key: &'k str,
}

impl<'t> DeserializeSeed<'t> for Wanted<'_> {
    type Value = Claims<'t>;

    fn deserialize<D: Deserializer<'t>>(self, deserializer: D) -> Result<Claims<'t>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'t> Visitor<'t> for Wanted<'_> {
    type Value = Claims<'t>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("claims")
    }

    fn visit_map<A: MapAccess<'t>>(self, mut map: A) -> Result<Claims<'t>, A::Error> {
        let (mut key, mut exp, mut nbf, mut iat) = (None, None, None, None::<f64>);
        while let Some(name) = map.next_key_seed(NameOf { key: self.key })? {
            // RFC 7519 section 4: of two claims of one name another reader may take the other one. A time is a number
            // (section 4.1): a null is no absent claim, for whoever issued the token meant to set one.
            let again = match name {
                Name::Key => key.replace(map.next_value()?).is_some(),
                Name::Exp => exp.replace(map.next_value()?).is_some(),
                Name::Nbf => nbf.replace(map.next_value()?).is_some(),
                Name::Iat => iat.replace(map.next_value()?).is_some(),
                Name::Other => {
                    map.next_value::<IgnoredAny>()?;
                    false
                }
            };
            if again {
                return Err(A::Error::custom("a claim that comes twice"));
            }
        }
        Ok(Claims { key: key.unwrap_or(Key::Absent), exp, nbf })
    }
}

/// The claim of a name.
enum Name {
    Key,
    Exp,
    Nbf,
    Iat,
    Other,
}

struct NameOf<'k> {
    key: &'k str,
}

impl<'t> DeserializeSeed<'t> for NameOf<'_> {
    type Value = Name;

    fn deserialize<D: Deserializer<'t>>(self, deserializer: D) -> Result<Name, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for NameOf<'_> {
    type Value = Name;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a claim")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Name, E> {
        Ok(match name {
            _ if name == self.key => Name::Key,
            "exp" => Name::Exp,
            "nbf" => Name::Nbf,
            "iat" => Name::Iat,
            _ => Name::Other,
        })
    }
}

impl<'t> Deserialize<'t> for Key<'t> {
    fn deserialize<D: Deserializer<'t>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl<'t> Visitor<'t> for KeyVisitor {
            type Value = Key<'t>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'t str) -> Result<Key<'t>, E> {
                Ok(Key::Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Key<'t>, E> {
                Ok(Key::Text(Cow::Owned(text.to_owned())))
            }

            fn visit_unit<E: Error>(self) -> Result<Key<'t>, E> {
                Ok(Key::Absent)
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<Key<'t>, E> {
                Ok(if value { Key::Other } else { Key::Absent })
            }

            fn visit_i64<E: Error>(self, _: i64) -> Result<Key<'t>, E> {
                Ok(Key::Other)
            }

            fn visit_u64<E: Error>(self, _: u64) -> Result<Key<'t>, E> {
                Ok(Key::Other)
            }

            fn visit_f64<E: Error>(self, _: f64) -> Result<Key<'t>, E> {
                Ok(Key::Other)
            }

            fn visit_map<A: MapAccess<'t>>(self, mut map: A) -> Result<Key<'t>, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Key::Other)
            }

            fn visit_seq<A: SeqAccess<'t>>(self, mut seq: A) -> Result<Key<'t>, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Key::Other)
            }
        }
        deserializer.deserialize_any(KeyVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::{Key, Token};
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    fn token(header: &str, payload: &str) -> String {
        format!("{}.{}.c2ln", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload))
    }

    const HEADER: &str = r#"{"typ":"JWT","alg":"HS256"}"#;

    #[test]
    fn a_token_is_taken_apart() {
        let text = token(HEADER, r#"{"roles":{"a":[1,{"b":"\n"}]},"key":"jack","exp":17.5,"nbf":-3}"#);
        let mut room = Vec::new();
        let token = Token::parse(text.as_bytes(), "key", &mut room).unwrap();
        assert_eq!((&*token.algorithm, token.signature), ("HS256", &b"sig"[..]));
        assert_eq!(token.signed, text.rsplit_once('.').unwrap().0.as_bytes());
        assert_eq!(token.claims.key, Key::Text("jack".into()));
        assert_eq!((token.claims.exp, token.claims.nbf), (Some(17.5), Some(-3.0)));
    }

    #[test]
    fn claims_may_be_of_any_kind() {
        for (payload, key, exp) in [
            ("{}", Key::Absent, None),
            (r#"{"key":null}"#, Key::Absent, None),
            (r#"{"key":false,"iat":1.5}"#, Key::Absent, None),
            (r#"{"key":true}"#, Key::Other, None),
            (r#"{"key":7,"exp":7}"#, Key::Other, Some(7.0)),
            (r#"{"key":["jack"]}"#, Key::Other, None),
            (r#"{"key":{"key":"jack","exp":null}}"#, Key::Other, None),
            (r#" { "key" : "j\u0061ck" } "#, Key::Text("jack".into()), None),
            (r#"{"\u006bey":"jack","exp":1e3}"#, Key::Text("jack".into()), Some(1000.0)),
        ] {
            let (text, mut room) = (token(HEADER, payload), Vec::new());
            let token = Token::parse(text.as_bytes(), "key", &mut room).unwrap_or_else(|| panic!("{payload}"));
            assert_eq!((token.claims.key, token.claims.exp), (key, exp), "{payload}");
        }
    }

    #[test]
    fn depth_costs_no_stack() {
        const DEPTH: usize = 1_000_000;
        let nested = |name| format!("{{\"{name}\":{}1{}}}", "[".repeat(DEPTH), "]".repeat(DEPTH));
        for (name, is_token) in [("a", true), ("key", true), ("exp", false)] {
            let (text, mut room) = (token(HEADER, &nested(name)), Vec::new());
            assert_eq!(Token::parse(text.as_bytes(), "key", &mut room).is_some(), is_token, "{name}");
        }
    }

    #[test]
    fn a_time_is_a_number() {
        for claim in ["exp", "nbf", "iat"] {
            for value in ["null", "true", "false", "\"17\"", "\"\"", "[17]", "{\"exp\":17}"] {
                let text = token(HEADER, &format!("{{\"key\":\"jack\",\"{claim}\":{value}}}"));
                assert!(Token::parse(text.as_bytes(), "key", &mut Vec::new()).is_none(), "{claim}: {value}");
            }
        }
    }

    #[test]
    fn what_is_not_a_token_in_its_one_form_is_none() {
        let good = token(HEADER, r#"{"key":"jack"}"#);
        for text in [
            String::new(),
            ".".into(),
            "..".into(),
            "a.b.c".into(),
            format!("{good}."),
            format!("{good}="),
            format!(" {good}"),
            good.replacen('.', "=.", 1),
            good.rsplit_once('.').unwrap().0.to_owned(),
            // The same bytes with bits to spare.
            good.replace("c2ln", "c2lnAB"),
            token("", "{}"),
            token("{}", "{}"),
            token(r#"["HS256",null]"#, "{}"),
            token(r#"{"alg":7}"#, "{}"),
            token(r#"{"alg":"HS256","alg":"none"}"#, "{}"),
            token(r#"{"alg":"HS256","crit":["b64"],"b64":false}"#, "{}"),
            token(r#"{"alg":"HS256"}x"#, "{}"),
            token(HEADER, ""),
            token(HEADER, "[]"),
            token(HEADER, "null"),
            token(HEADER, "{} {}"),
            token(HEADER, r#"{"key":"jack","key":"jill"}"#),
            token(HEADER, r#"{"exp":1,"\u0065xp":2}"#),
            token(HEADER, r#"{"exp":1e999}"#),
            token(HEADER, "{'key':1}"),
        ] {
            assert!(Token::parse(text.as_bytes(), "key", &mut Vec::new()).is_none(), "{text}");
        }
        let bytes = format!("{}.{}.", URL_SAFE_NO_PAD.encode(HEADER), URL_SAFE_NO_PAD.encode(b"{\"key\":\"\xff\"}"));
        assert!(Token::parse(bytes.as_bytes(), "key", &mut Vec::new()).is_none(), "not UTF-8");
    }
}
