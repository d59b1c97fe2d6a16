//! The maps of fields, with the parts of the first line under names that begin with a colon, as in HTTP/2.

use weir_plugin::{Lent, lent};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use crate::call::Stage;
use crate::host::{Cx, Done, Fault, Status};
use crate::pairs::Pairs;

/// A map of fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Map {
    Request,
    Response,
    /// Fields of a service's answer.
    Service,
    /// Trailers and metadata, of which there are none here.
    Nothing,
}

impl Map {
    /// The map of a number of the ABI.
    pub(crate) fn of(number: u32) -> Done<Self> {
        match number {
            0 => Ok(Self::Request),
            2 => Ok(Self::Response),
            6 => Ok(Self::Service),
            1 | 3 | 4 | 5 | 7 => Ok(Self::Nothing),
            _ => Err(Status::BadArgument.into()),
        }
    }
}

/// Looks at the exchange.
pub(crate) fn exchange<R>(look: impl FnOnce(&mut Lent<'_>) -> R) -> Done<R> {
    lent(look).ok_or(Fault::Status(Status::BadArgument))
}

/// Looks at each field of a map.
fn each(cx: &Cx<'_>, map: Map, mut look: impl FnMut(&[u8], &[u8])) -> Done {
    match map {
        Map::Request => exchange(|x| {
            let x = x.as_request();
            let request = x.request();
            let mut target = Vec::new();
            request.write_upstream_target(&mut target);
            look(b":method", method(request));
            look(b":path", &target);
            look(b":scheme", if x.client().https { b"https" } else { b"http" });
            look(b":authority", request.host_port());
            let fields = request.head.fields.iter(request.buffer.bytes());
            fields.filter(|(name, _)| !is_host(name)).for_each(|(name, value)| look(name, value));
        }),
        Map::Response => {
            has_response(cx)?;
            exchange(|x| {
                let x = x.as_response();
                let response = x.response();
                look(b":status", x.status().to_string().as_bytes());
                response.head.fields.iter(response.buffer.bytes()).for_each(|(name, value)| look(name, value));
            })
        }
        Map::Service => {
            let answer = cx.data().call.service_answer.as_ref().ok_or(Status::BadArgument)?;
            answer.fields.iter().for_each(|(name, value)| look(name, value));
            Ok(())
        }
        Map::Nothing => Ok(()),
    }
}

/// All fields of a map, with names in lower case.
pub(crate) fn all(cx: &Cx<'_>, map: Map) -> Done<Pairs> {
    let mut pairs = Pairs::new();
    each(cx, map, |name, value| pairs.push((name.to_ascii_lowercase(), value.to_vec())))?;
    Ok(pairs)
}

/// Bytes of all names and values of a map.
pub(crate) fn size(cx: &Cx<'_>, map: Map) -> Done<usize> {
    let mut size = 0;
    each(cx, map, |name, value| size += name.len() + value.len())?;
    Ok(size)
}

fn is_host(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"host")
}

fn method(request: &weir_plugin::Request) -> &[u8] {
    request.upstream.method.map_or_else(|| request.method_bytes(), |method| method.as_str().as_bytes())
}

fn has_response(cx: &Cx<'_>) -> Done {
    match cx.data().call.stage {
        Stage::Response | Stage::ResponseBody | Stage::Log => Ok(()),
        Stage::Nowhere | Stage::Request => Err(Status::BadArgument.into()),
    }
}

/// The value of a name; several are one list.
pub(crate) fn get(cx: &Cx<'_>, map: Map, name: &[u8]) -> Done<Vec<u8>> {
    let name = if map == Map::Request && is_host(name) { b":authority" } else { name };
    let mut values: Option<Vec<u8>> = None;
    each(cx, map, |other, value| match &mut values {
        _ if !other.eq_ignore_ascii_case(name) => {}
        None => values = Some(value.to_vec()),
        Some(list) => {
            list.extend_from_slice(b", ");
            list.extend_from_slice(value);
        }
    })?;
    values.ok_or(Status::NotFound.into())
}

/// Change of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Add,
    Replace,
    Remove,
}

/// Changes a field.
pub(crate) fn change(cx: &Cx<'_>, map: Map, change: Change, name: &[u8], value: &[u8]) -> Done {
    if value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
        return Err(Status::BadArgument.into());
    }
    match (map, cx.data().call.stage) {
        (Map::Request, Stage::Request) => change_request(change, name, value),
        (Map::Response, Stage::Response) => change_response(change, name, value),
        _ => Err(Status::BadArgument.into()),
    }
}

/// A field that a filter may change: what frames a message or belongs to a connection is the gateway's own, of which
/// nothing is left to remove.
fn editable(change: Change, name: &[u8]) -> Done<Option<FieldName>> {
    let name = std::str::from_utf8(name).ok().and_then(FieldName::new).ok_or(Status::BadArgument)?;
    match (name.is_framing(), change) {
        (false, _) => Ok(Some(name)),
        (true, Change::Remove) => Ok(None),
        (true, _) => Err(Status::BadArgument.into()),
    }
}

/// True for a field of an answer that a filter may give; others are left out.
pub(crate) fn is_own(name: &[u8]) -> bool {
    std::str::from_utf8(name).ok().and_then(FieldName::new).is_some_and(|name| !name.is_framing())
}

fn change_request(change: Change, name: &[u8], value: &[u8]) -> Done {
    match name {
        b":path" if change == Change::Replace => return set_target(value),
        b":method" if change == Change::Replace => {
            return match Method::parse(value) {
                Method::Other | Method::Connect => Err(Status::BadArgument.into()),
                method => exchange(|x| x.as_request().request_mut().upstream.method = Some(method)),
            };
        }
        b":authority" if change == Change::Replace => return set_host(value),
        _ if is_host(name) && change == Change::Replace => return set_host(value),
        _ if is_host(name) || name.starts_with(b":") => return Err(Status::BadArgument.into()),
        _ => {}
    }
    let Some(name) = editable(change, name)? else { return Ok(()) };
    exchange(|x| {
        let mut x = x.as_request();
        let request = x.request_mut();
        match change {
            Change::Add => request.add_field(&name, value),
            Change::Replace => request.set_field(&name, value),
            Change::Remove => request.remove_field(&name),
        }
    })
}

fn set_target(target: &[u8]) -> Done {
    let is_bad = |byte: &u8| !(0x21..=0x7e).contains(byte) || *byte == b'#';
    if target.first() != Some(&b'/') || target.iter().any(is_bad) {
        return Err(Status::BadArgument.into());
    }
    exchange(|x| {
        let mut x = x.as_request();
        let upstream = &mut x.request_mut().upstream;
        upstream.target.clear();
        upstream.target.extend_from_slice(target);
    })
}

fn set_host(host: &[u8]) -> Done {
    if weir_wire::authority::parse(host).is_err() {
        return Err(Status::BadArgument.into());
    }
    exchange(|x| {
        let mut x = x.as_request();
        x.request_mut().upstream.set_host(host);
    })
}

fn change_response(change: Change, name: &[u8], value: &[u8]) -> Done {
    if name == b":status" && change == Change::Replace {
        let status = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        let status = status.filter(|status| (200..=999).contains(status)).ok_or(Status::BadArgument)?;
        return exchange(|x| x.as_response().set_status(status));
    }
    if name.starts_with(b":") {
        return Err(Status::BadArgument.into());
    }
    let Some(name) = editable(change, name)? else { return Ok(()) };
    exchange(|x| {
        let mut x = x.as_response();
        if change != Change::Add {
            x.remove_field(&name);
        }
        if change != Change::Remove {
            x.add_field(&name, value);
        }
    })
}

/// Replaces all fields of a map by these; the parts of the first line are set, and those that are left out stay.
pub(crate) fn set_all(cx: &Cx<'_>, map: Map, pairs: &[(Vec<u8>, Vec<u8>)]) -> Done {
    for (name, _) in all(cx, map)? {
        if !name.starts_with(b":") {
            change(cx, map, Change::Remove, &name, b"")?;
        }
    }
    for (name, value) in pairs {
        let kind = if name.starts_with(b":") || is_host(name) { Change::Replace } else { Change::Add };
        let is_framing = matches!(editable(Change::Remove, name), Ok(None));
        if !is_framing {
            change(cx, map, kind, name, value)?;
        }
    }
    Ok(())
}
