use weir_config::*;
struct Cat;
impl PluginCatalog for Cat {
    fn names(&self) -> Vec<&str> { vec!["key-auth","limit-count","prometheus"] }
    fn check(&self, _: &str, _: Scope, _: &Node) -> Result<(), Vec<Diagnostic>> { Ok(()) }
}
fn main() {
    let file = std::env::args().nth(1).unwrap();
    let text = std::fs::read(&file).unwrap();
    let options = LoadOptions { invalid_items: if std::env::args().nth(2).is_some() {InvalidItems::Skip} else {InvalidItems::Refuse}, strict: false, variables: &|n| std::env::var(n).ok(), plugins: &Cat, router: RouterMode::default() };
    let t = std::time::Instant::now();
    let loaded = load(&file, &text, &options);
    eprintln!("{:?}", t.elapsed());
    for d in loaded.diagnostics.iter().take(60) { println!("{d}"); }
    println!("{:?}", loaded.document.map(|d| (d.routes.len(), d.upstreams.len(), d.consumers.len())));
}
#[test] fn x() { println!("{} {} {}", size_of::<Route>(), size_of::<Upstream>(), size_of::<Node>()); }
