use saphyr_parser::Parser;
fn main() {
    for e in Parser::new_from_str("a: &x [1]\nb: {<<: *x}") { println!("{e:?}"); }
    println!("{:?}", weir_config::Node::parse("a: &x [1]\nb: {<<: *x}"));
}
