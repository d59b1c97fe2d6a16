//! Records of requests for Tyk's Pump.

use weir_config::Node;

use super::{flag, list, map, number, target, text};
use crate::conf::{Analytics, Records};
use crate::definition::Definition;

/// The configuration of the plugin `analytics` for an API, with the names of its versions and their lists of paths.
pub(super) fn analytics(api: &Definition, id: &str, (names, paths): (Vec<Node>, Node), conf: &Analytics) -> Node {
    let mark = api.node.mark;
    let mut analytics = map(mark, [("api_id", text(id)), ("versions", list(mark, names)), ("paths", paths)]);
    for (field, value) in [
        ("name", api.text("name")),
        ("org_id", api.text("org_id")),
        ("listen_path", api.text("proxy.listen_path")),
        ("host", &target::authority(api)),
    ] {
        analytics.insert(field, text(value));
    }
    analytics.insert("strip_listen_path", flag(api.flag("proxy.strip_listen_path")));
    if let Some(headers) = api.at("tag_headers") {
        analytics.insert("tag_headers", headers.clone());
    }
    analytics.insert("expire_after", number(api.number("expire_analytics_after").clamp(0.0, 1e12) as i64));
    let is_detailed = conf.is_detailed || api.flag("enable_detailed_recording");
    analytics.insert("enable_detailed_recording", flag(is_detailed));
    let ignored = conf.ignored_ips.iter().map(|address| text(address)).collect();
    analytics.insert("ignored_ips", list(mark, ignored));
    let (name, target) = match &conf.to {
        Records::Mongo { url, collection } => {
            ("mongo", map(mark, [("url", text(url)), ("collection", text(collection))]))
        }
        Records::Csv { folder } => ("csv_dir", text(&folder.display().to_string())),
        Records::Redis { host, port, username, password, database, use_ssl, skips_verification, expires } => {
            let fields = [
                ("host", text(host)),
                ("port", number((*port).into())),
                ("username", text(username)),
                ("password", text(password)),
                ("database", number((*database).into())),
                ("use_ssl", flag(*use_ssl)),
                ("ssl_insecure_skip_verify", flag(*skips_verification)),
                ("expires", number(*expires)),
            ];
            ("redis", map(mark, fields))
        }
    };
    analytics.insert(name, target);
    analytics
}
