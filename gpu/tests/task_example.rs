//! The worked example of `docs/ENVIRONMENTS.md` is the code that is compiled and tested.

/// The page holds the file's text, from the first documented item on.
#[test]
fn the_page_shows_the_file() {
    let page = include_str!("../../docs/ENVIRONMENTS.md");
    let file = include_str!("../src/task/mountain_car.rs");
    let code = file.split_once("from here on.\n\n").expect("the file says where the page begins").1;
    assert!(code.contains("impl Environment for MountainCar"), "{code}");
    assert!(
        page.contains(&format!("```rust\n{code}```")),
        "docs/ENVIRONMENTS.md differs from mountain_car.rs"
    );
    let list = include_str!("../src/task/mod.rs");
    let list = &list[list.rfind("environments! {").expect("the list of environments")..];
    assert!(
        page.contains(list.trim_end()),
        "docs/ENVIRONMENTS.md shows another list than gpu/src/task/mod.rs"
    );
}
