//! Parameters of query strings and forms, nested by brackets: `transactions[0][usage][hits]=1`.

use memchr::memmem;
use percent_encoding::percent_decode;
use serde_json::{Map, Value};

use crate::fault::Fault;

/// Parameters of a call: a tree of objects, lists and texts; null for a name without a value.
pub(crate) type Params = Map<String, Value>;

/// Most levels of brackets.
const DEPTH: usize = 8;
/// Most parameters of a call.
const MOST: usize = 65_536;
const TOO_MANY: Fault = Fault::BadRequest("total number of query parameters exceeds limit (65536)");

/// Adds the parameters of a query string or a form, later ones in the place of earlier ones.
pub(crate) fn parse(text: &[u8], params: &mut Params) -> Result<(), Fault> {
    let pairs = text.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty());
    for (place, pair) in pairs.enumerate() {
        if place >= MOST {
            return Err(TOO_MANY);
        }
        let equals = pair.iter().position(|byte| *byte == b'=');
        let (name, value) = match equals.and_then(|at| pair.split_at_checked(at)) {
            Some((name, value)) => (name, value.get(1..)),
            None => (pair, None),
        };
        let value = value.map(decode).transpose()?.map_or(Value::Null, Value::String);
        put(params, &decode(name)?, value)?;
    }
    Ok(())
}

/// Adds the parameters of a form of the type `multipart/form-data`, whose boundary is a parameter of the type.
pub(crate) fn parse_multipart(media_type: &str, body: &[u8], params: &mut Params) -> Result<(), Fault> {
    const BROKEN: Fault = Fault::BadRequest("the form of several parts cannot be read");
    let boundary = media_type.split(';').find_map(|part| part.trim().strip_prefix("boundary="));
    let boundary = boundary.map(|text| text.trim_matches('"')).filter(|text| !text.is_empty()).ok_or(BROKEN)?;
    let line = format!("--{boundary}");
    let between = format!("\r\n{line}");
    let mut rest = body.strip_prefix(line.as_bytes()).ok_or(BROKEN)?;
    for place in 0.. {
        if rest.starts_with(b"--") {
            return Ok(());
        }
        if place >= MOST {
            return Err(TOO_MANY);
        }
        let part = rest.strip_prefix(b"\r\n").ok_or(BROKEN)?;
        let end = memmem::find(part, between.as_bytes()).ok_or(BROKEN)?;
        let (part, after) = part.split_at_checked(end).ok_or(BROKEN)?;
        rest = after.get(between.len()..).unwrap_or_default();
        let head = memmem::find(part, b"\r\n\r\n").ok_or(BROKEN)?;
        let (head, value) = part.split_at_checked(head).ok_or(BROKEN)?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| Fault::NotValidData);
        let (head, value) = (text(head)?, text(value.get(4..).unwrap_or_default())?);
        let name = head.split(';').find_map(|part| part.trim().strip_prefix("name=\"")?.split('"').next());
        put(params, name.ok_or(BROKEN)?, Value::String(value))?;
    }
    Ok(())
}

/// Decodes `%XX` and `+`.
fn decode(text: &[u8]) -> Result<String, Fault> {
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        let digits = rest.get(at + 1..at + 3).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        if digits.is_none() {
            return Err(Fault::BadRequest("Invalid query parameters: invalid %-encoding"));
        }
        rest = rest.get(at + 3..).unwrap_or_default();
    }
    let plain: Vec<u8> = text.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
    let decoded = percent_decode(&plain).decode_utf8().map_err(|_| Fault::NotValidData)?;
    Ok(decoded.into_owned())
}

/// Puts a value where a name with brackets leads to.
fn put(params: &mut Params, name: &str, value: Value) -> Result<(), Fault> {
    const MIXED: Fault =
        Fault::BadRequest("request contains syntax errors, should not be repeated without modification");
    let (first, brackets) = match name.find('[').filter(|at| *at > 0).and_then(|at| name.split_at_checked(at)) {
        Some((first, rest)) => (first, rest),
        None => (name, ""),
    };
    let mut steps = vec![first];
    let mut rest = brackets;
    while let Some((step, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        steps.push(step);
        rest = after;
    }
    if steps.len() > DEPTH {
        return Err(Fault::BadRequest("expected no more than 8 levels of brackets"));
    }
    let Some((last, way)) = steps.split_last() else { return Ok(()) };
    let mut map = params;
    let mut way = way.iter();
    // `name[]` is an element of a list, wherever it stands.
    let is_element = last.is_empty() && steps.len() > 1;
    let target = if is_element { way.next_back().copied().unwrap_or_default() } else { last };
    for step in way {
        if step.is_empty() {
            return Err(MIXED);
        }
        let next = map.entry(*step).or_insert_with(|| Value::Object(Map::new()));
        map = next.as_object_mut().ok_or(MIXED)?;
    }
    if is_element {
        let list = map.entry(target).or_insert_with(|| Value::Array(Vec::new()));
        list.as_array_mut().ok_or(MIXED)?.push(value);
        return Ok(());
    }
    match map.get(target) {
        Some(Value::Object(_) | Value::Array(_)) => Err(MIXED),
        _ => {
            map.insert(target.to_owned(), value);
            Ok(())
        }
    }
}

/// The text of a parameter; `None` for one that is not there or no text.
pub(crate) fn text<'p>(params: &'p Params, name: &str) -> Option<&'p str> {
    params.get(name).and_then(Value::as_str)
}

/// The text of a parameter without blanks around it; `None` for an empty one as well.
pub(crate) fn filled<'p>(params: &'p Params, name: &str) -> Option<&'p str> {
    text(params, name).map(str::trim).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::{Fault, Params, parse, parse_multipart};
    use serde_json::{Value, json};

    fn read(text: &str) -> Result<Value, Fault> {
        let mut params = Params::new();
        parse(text.as_bytes(), &mut params).map(|()| Value::Object(params))
    }

    #[test]
    fn brackets_are_levels() {
        for (text, expected) in [
            ("a=1&b=x+y%20z&c&d=", json!({"a": "1", "b": "x y z", "c": null, "d": ""})),
            ("a=1&a=2", json!({"a": "2"})),
            ("usage[hits]=1&usage%5Bother%5D=%232", json!({"usage": {"hits": "1", "other": "#2"}})),
            ("t[0][usage][hits]=1&t[0][app_id]=a", json!({"t": {"0": {"usage": {"hits": "1"}, "app_id": "a"}}})),
            ("t[]=1&t[]=2", json!({"t": ["1", "2"]})),
            ("[a]=1&a[b=2&=3", json!({"[a]": "1", "a": "2", "": "3"})),
        ] {
            assert_eq!(read(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for text in
            ["a=1&a[b]=2", "a[b]=1&a=2", "a[]=1&a[b]=2", "a[][b]=1", "a=%zz", "a=%2", "a[a][a][a][a][a][a][a][a]=1"]
        {
            assert!(matches!(read(text), Err(Fault::BadRequest(_))), "{text}: {:?}", read(text));
        }
        assert_eq!(read("a=%ff"), Err(Fault::NotValidData));
        let multipart = |media_type: &str, body: &str| {
            let mut params = Params::new();
            parse_multipart(media_type, body.as_bytes(), &mut params).map(|()| Value::Object(params))
        };
        let form = "--x\r\nContent-Disposition: form-data; name=\"t[0][app_id]\"\r\n\r\na\r\nb\r\n--x\r\n\
                    content-disposition: form-data; name=\"k\"\r\n\r\n\r\n--x--\r\n";
        let expected = json!({"t": {"0": {"app_id": "a\r\nb"}}, "k": ""});
        assert_eq!(multipart("multipart/form-data; boundary=\"x\"", form), Ok(expected));
        for (media_type, body) in [
            ("multipart/form-data", form),
            ("multipart/form-data; boundary=y", form),
            ("multipart/form-data; boundary=x", form.split_at(70).0),
            ("multipart/form-data; boundary=x", "--x\r\nname\r\n\r\n1\r\n--x--"),
        ] {
            assert!(matches!(multipart(media_type, body), Err(Fault::BadRequest(_))), "{media_type} {body}");
        }
        let many = "a&".repeat(65_536);
        assert!(read(&many).is_ok());
        assert!(matches!(read(&format!("{many}a")), Err(Fault::BadRequest(_))));
    }
}
