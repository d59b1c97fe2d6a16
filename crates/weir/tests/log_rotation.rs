//! Rotation of log files: by time and by size, compressed, and only so many of them.

use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;

use flate2::read::GzDecoder;
use serde_json::{Value, json};

use crate::harness::{Gateway, LIMIT, Origin, Start, route_to, wait_until};

/// The files of a log that were moved, in the order of their times.
fn moved(gateway: &Gateway, name: &str) -> Vec<PathBuf> {
    let folder = gateway.file("");
    let ends = [format!("__{name}"), format!("__{name}.gz")];
    let is_of = |found: &str| ends.iter().any(|end| found.ends_with(end.as_str()));
    let entries = fs::read_dir(folder).expect("read the folder").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<_> =
        entries.filter(|path| path.file_name().is_some_and(|name| is_of(&name.to_string_lossy()))).collect();
    found.sort();
    found
}

fn read(path: &PathBuf) -> String {
    let mut text = String::new();
    // One may be compressed or removed meanwhile: then it is found under its other name the next time.
    if let Ok(file) = File::open(path) {
        match path.extension().is_some_and(|end| end == "gz") {
            true => GzDecoder::new(file).read_to_string(&mut text).expect("a compressed text"),
            false => (&file).read_to_string(&mut text).expect("a text"),
        };
    }
    text
}

fn start(rotation: &Value) -> (Origin, Gateway) {
    let origin = Origin::hello();
    let settings = json!({
        "access_log": { "path": "FOLDER/access.log", "format": "$request_uri" },
        "error_log": { "path": "FOLDER/error.log" }, "log_rotation": rotation,
    });
    let gateway = Start::new(route_to(&[origin.node()])).settings(settings).start();
    (origin, gateway)
}

#[test]
fn files_are_moved_at_their_time_and_no_line_is_lost() {
    let (_origin, gateway) = start(&json!({ "enabled": true, "interval": "1s", "compress": true }));
    let mut client = gateway.client();
    let mut sent = 0;
    wait_until("three files", LIMIT, || {
        for _ in 0..20 {
            assert_eq!(client.get(&format!("/{sent}")).status, 200);
            sent += 1;
        }
        Some(()).filter(|()| moved(&gateway, "access.log").len() >= 3)
    });
    wait_until("a line for each request", LIMIT, || {
        let files = moved(&gateway, "access.log");
        let text: String = files.iter().chain([&gateway.file("access.log")]).map(read).collect();
        let lines: Vec<_> = text.lines().map(str::to_owned).collect();
        Some(()).filter(|()| lines == (0..sent).map(|number| format!("/{number}")).collect::<Vec<_>>())
    });
    let compressed = wait_until("compressed files", LIMIT, || {
        Some(moved(&gateway, "access.log"))
            .filter(|files| files.iter().all(|f| f.extension().is_some_and(|e| e == "gz")))
    });
    let name = compressed[0].file_name().expect("a name").to_string_lossy().into_owned();
    assert!(name.len() == "2026-11-28_17-00-00__access.log.gz".len() && name.starts_with("20"), "{name}");
    assert!(!moved(&gateway, "error.log").is_empty(), "the error log as well");
}

#[test]
fn the_oldest_files_are_removed() {
    let (_origin, gateway) = start(&json!({ "enabled": true, "interval": "1s", "max_kept": 1 }));
    let mut client = gateway.client();
    let mut seen = Vec::new();
    wait_until("three files, one after the other", LIMIT, || {
        assert_eq!(client.get("/").status, 200);
        for path in moved(&gateway, "access.log") {
            if !seen.contains(&path) {
                seen.push(path);
            }
        }
        Some(()).filter(|()| seen.len() >= 3)
    });
    wait_until("one file", LIMIT, || Some(()).filter(|()| moved(&gateway, "access.log").len() == 1));
}

#[test]
fn the_keys_of_config_yaml_turn_it_on() {
    let origin = Origin::hello();
    let settings = |plugins: &str| {
        format!(
            "apisix: {{node_listen: [{{ip: 127.0.0.1, port: 0}}], ssl: {{enable: false}}, enable_control: false}}\n\
             nginx_config: {{http: {{access_log: FOLDER/access.log, access_log_format: '$request_uri'}}}}\n\
             plugins: [{plugins}]\n\
             plugin_attr: {{log-rotate: {{interval: 86400, max_kept: 10, max_size: 100, timeout: 1, enable_compression: true}}}}\n\
             deployment: {{role: data_plane, role_data_plane: {{config_provider: yaml}}}}\n"
        )
    };
    let rules = route_to(&[origin.node()]);
    let start = |plugins: &str| Start::new(rules.clone()).settings(settings(plugins)).own_listeners().start();
    let gateway = start("cors, log-rotate");
    let mut client = gateway.client();
    let path = format!("/{}", "x".repeat(40));
    for _ in 0..2 {
        assert_eq!(client.get(&path).status, 200);
    }
    assert_eq!(moved(&gateway, "access.log"), Vec::<PathBuf>::new(), "it is small still");
    let files = wait_until("a file", LIMIT, || {
        assert_eq!(client.get(&path).status, 200);
        let files = moved(&gateway, "access.log");
        Some(files).filter(|files| files.iter().any(|file| file.extension().is_some_and(|end| end == "gz")))
    });
    assert!(read(files.first().expect("a file")).lines().count() >= 3);
    // Without the plugin nothing is moved, however long the file is.
    let gateway = start("cors");
    let mut client = gateway.client();
    for _ in 0..10 {
        assert_eq!(client.get(&path).status, 200);
    }
    wait_until("the lines", LIMIT, || Some(()).filter(|()| read(&gateway.file("access.log")).lines().count() == 10));
    assert_eq!(moved(&gateway, "access.log"), Vec::<PathBuf>::new());
}
