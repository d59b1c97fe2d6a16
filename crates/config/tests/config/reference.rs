//! The reference page is what the types say.

use std::path::Path;

#[test]
fn the_committed_page_is_generated() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let page = weir_config::reference::markdown();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&file, &page).expect("docs/configuration.md can be written");
        return;
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        committed == page,
        "docs/configuration.md is not what the types say; renew it: UPDATE_DOCS=1 cargo test -p weir-config"
    );
}
