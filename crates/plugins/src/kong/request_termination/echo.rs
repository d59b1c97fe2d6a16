//! The answer that tells a request: `echo`.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};
use weir_expr::Variable;
use weir_plugin::{HookCx, RequestCx};

use super::super::arguments::{Arguments, put};
use super::super::correlation_id::uuid;
use super::super::media::Media;

/// Id of this process, as Kong has one of a node.
static NODE: LazyLock<String> = LazyLock::new(uuid);
static HOSTNAME: LazyLock<Option<Variable>> = LazyLock::new(|| Variable::parse("hostname").ok());

/// The JSON of a request whose body is here.
pub(super) fn text(cx: &RequestCx<'_>, message: Option<&str>) -> Vec<u8> {
    let request = cx.request();
    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut headers = Map::new();
    for (name, value) in request.head.fields.iter(request.buffer.bytes()) {
        put(&mut headers, lossy(name).to_ascii_lowercase(), Value::String(lossy(value)));
    }
    let raw = cx.body().unwrap_or_default();
    let body = match Media::of(request.field_str("content-type").unwrap_or_default()) {
        Some(Media::Json) => serde_json::from_slice(raw).unwrap_or(Value::Null),
        Some(Media::Form) => Value::Object(Arguments::parse(raw).to_json()),
        None => Value::Null,
    };
    let hostname = HOSTNAME.as_ref().and_then(|variable| cx.variable(variable)).map(|value| match value {
        weir_expr::Value::Bytes(text) => lossy(text),
        _ => String::new(),
    });
    let mut whole = Map::new();
    if let Some(message) = message {
        whole.insert("message".to_owned(), message.into());
    }
    let client = cx.client();
    let port = request.port().and_then(|port| std::str::from_utf8(port).ok()?.parse::<u16>().ok());
    let told = json!({
        "scheme": if client.https { "https" } else { "http" },
        "host": lossy(request.host()),
        "port": port.unwrap_or(client.local.port()),
        "headers": headers,
        "query": Arguments::parse(request.query().unwrap_or_default()).to_json(),
        "body": body,
        "raw_body": lossy(raw),
        "method": lossy(request.method_bytes()),
        "path": lossy(request.encoded_path()),
    });
    whole.insert("request".to_owned(), told);
    let kong = json!({ "node_id": *NODE, "worker_pid": std::process::id(), "hostname": hostname });
    whole.insert("kong".to_owned(), kong);
    if let Some(route) = cx.view().route() {
        let entity = |id: &str, name: Option<&str>| json!({ "id": id, "name": name });
        let name = route.name.as_ref().map(|name| &*name.text);
        whole.insert("matched_route".to_owned(), entity(&route.id.text, name));
        if let Some(service) = &route.service_id {
            let name = route.service_name.as_ref().map(|name| &*name.text);
            whole.insert("matched_service".to_owned(), entity(&service.text, name));
        }
    }
    serde_json::to_vec(&whole).unwrap_or_default()
}
