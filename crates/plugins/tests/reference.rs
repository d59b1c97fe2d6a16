//! The reference pages are what the definitions say.

use std::path::Path;

#[test]
fn the_committed_pages_are_generated() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/plugins");
    let pages = weir_plugins::reference::pages();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(&folder).expect("docs/plugins can be made");
        for (name, page) in &pages {
            std::fs::write(folder.join(name), page).expect("docs/plugins can be written");
        }
    }
    for (name, page) in &pages {
        let committed = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        assert!(
            committed == *page,
            "docs/plugins/{name} is not what the definition says; renew it: UPDATE_DOCS=1 cargo test -p weir-plugins"
        );
    }
    let files = std::fs::read_dir(&folder).expect("docs/plugins can be read");
    for file in files.map(|file| file.expect("docs/plugins can be read").file_name()) {
        let name = file.to_string_lossy().into_owned();
        assert!(pages.iter().any(|(known, _)| *known == name), "docs/plugins/{name} belongs to no plugin");
    }
}
