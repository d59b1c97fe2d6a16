//! Properties of an exchange: attributes by the names of the ABI's users, variables of the gateway, and what a filter has
//! set itself.

use weir_expr::{Value, Variable};

use crate::headers::{self, Map, exchange};
use crate::host::{Cx, Done, Status, stream};

/// Most properties that a filter sets on a request.
const MOST: usize = 64;
/// Most bytes of one.
const MOST_BYTES: usize = 16 << 10;

/// Attributes, as Envoy names them, and the variables that hold them.
const ATTRIBUTES: [(&str, &str); 22] = [
    ("request.path", "request_uri"),
    ("request.url_path", "uri"),
    ("request.query", "args"),
    ("request.host", "host"),
    ("request.scheme", "scheme"),
    ("request.method", "request_method"),
    ("request.referer", "http_referer"),
    ("request.useragent", "http_user_agent"),
    ("request.id", "request_id"),
    ("request.protocol", "server_protocol"),
    ("request.size", "request_length"),
    ("response.code", "status"),
    ("response.size", "bytes_sent"),
    ("source.address", "remote_addr"),
    ("source.port", "remote_port"),
    ("destination.address", "server_addr"),
    ("destination.port", "server_port"),
    ("upstream.address", "upstream_addr"),
    ("connection.requested_server_name", "ssl_server_name"),
    ("connection.tls_version", "ssl_protocol"),
    ("xds.route_name", "route_id"),
    ("route_name", "route_id"),
];

/// The parts of a path, which stand behind each other with a zero byte between.
fn joined(path: &[u8]) -> Option<String> {
    let path = std::str::from_utf8(path).ok()?;
    Some(path.trim_end_matches('\0').replace('\0', "."))
}

/// The value of a property.
pub(crate) fn get(cx: &mut Cx<'_>, path: &[u8]) -> Done<Vec<u8>> {
    if let Some(value) = stream(cx).and_then(|stream| stream.properties.get(path)) {
        return Ok(value.clone());
    }
    let name = joined(path).ok_or(Status::BadArgument)?;
    match name.as_str() {
        "plugin_name" | "plugin_root_id" | "plugin_vm_id" => return Ok(cx.data().name.as_bytes().to_vec()),
        _ => {}
    }
    for (prefix, map) in [("request.headers.", Map::Request), ("response.headers.", Map::Response)] {
        if let Some(field) = name.strip_prefix(prefix) {
            return headers::get(cx, map, field.as_bytes());
        }
    }
    let attribute = ATTRIBUTES.iter().find(|(attribute, _)| *attribute == name);
    let variable = Variable::parse(attribute.map_or(name.as_str(), |(_, variable)| variable));
    let variable = variable.map_err(|_| Status::NotFound)?;
    let value = exchange(|x| {
        let x = x.as_request();
        x.variable(&variable).map(|value| match (value, attribute) {
            // Numbers of attributes are integers of 64 bits; variables are text.
            (Value::Number(number), Some(_)) => number.to_le_bytes().to_vec(),
            (value, _) => {
                let mut text = Vec::new();
                value.write_to(&mut text);
                text
            }
        })
    })?;
    value.ok_or(Status::NotFound.into())
}

/// Sets a property of the request.
pub(crate) fn set(cx: &mut Cx<'_>, path: Vec<u8>, value: Vec<u8>) -> Done {
    let stream = stream(cx).ok_or(Status::BadArgument)?;
    // Set by filters for APISIX, for their callbacks of bodies: any value but an empty one.
    match joined(&path).as_deref() {
        Some("wasm_process_req_body") => stream.wants_request_body = !value.is_empty(),
        Some("wasm_process_resp_body") => stream.wants_response_body = !value.is_empty(),
        _ => {}
    }
    let is_new = !stream.properties.contains_key(&path);
    if path.len() + value.len() > MOST_BYTES || (is_new && stream.properties.len() >= MOST) {
        return Err(Status::InternalFailure.into());
    }
    stream.properties.insert(path, value);
    Ok(())
}
