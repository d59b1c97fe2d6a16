//! Compresses the built files of the dashboard, so that building the gateway needs no Node.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::{env, fs};

use flate2::Compression;
use flate2::write::GzEncoder;

/// The files, relative to `dashboard/dist`, with their media types. The order is that of the table in the crate.
const FILES: [(&str, &str); 4] = [
    ("index.html", "text/html; charset=utf-8"),
    ("dashboard/app.js", "text/javascript; charset=utf-8"),
    ("dashboard/app.css", "text/css; charset=utf-8"),
    ("dashboard/icon.svg", "image/svg+xml"),
];

fn main() {
    let from = Path::new(&env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../../dashboard/dist");
    let to = env::var_os("OUT_DIR").expect("cargo sets it");
    let mut table = String::from("/// The files.\npub const ASSETS: &[Asset] = &[\n");
    for (number, (name, media_type)) in FILES.into_iter().enumerate() {
        let path = from.join(name);
        println!("cargo::rerun-if-changed={}", path.display());
        let content =
            fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}; `make dashboard` builds it", path.display()));
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&content).expect("memory takes all");
        let packed = encoder.finish().expect("memory takes all");
        let mut crc = flate2::Crc::new();
        crc.update(&content);
        let packed_path = Path::new(&to).join(format!("{number}.gz"));
        fs::write(&packed_path, packed).expect("write to OUT_DIR");
        writeln!(
            table,
            "    Asset {{ path: {name:?}, media_type: {media_type:?}, tag: \"\\\"{:x}-{:x}\\\"\", gzip: include_bytes!({packed_path:?}) }},",
            content.len(),
            crc.sum(),
        )
        .expect("memory takes all");
    }
    table.push_str("];\n");
    fs::write(Path::new(&to).join("assets.rs"), table).expect("write to OUT_DIR");
}
