//! The Rust of the pages for newcomers is that of a program that is built here, and does what the page says.

use std::{env, process::Command};

#[path = "../../examples/orders.rs"]
mod orders;

const PROGRAM: &str = include_str!("../../examples/orders.rs");
const PAGES: [&str; 4] = [
    include_str!("../../../../docs/areas.md"),
    include_str!("../../../../docs/ranks.md"),
    include_str!("../../../../docs/mpi.md"),
    include_str!("../../../../docs/python.md"),
];
const STORE: &str = "FERMATA_TEST_SHOP";

/// The page leaves lines out and adds remarks at their ends; it changes none, nor their order.
#[test]
fn what_the_pages_show_is_in_the_program() {
    let blocks = PAGES.iter().flat_map(|page| page.split("\n```rust\n").skip(1)).filter_map(|block| block.split("\n```").next());
    let mut shown = 0;
    for block in blocks {
        let mut program = PROGRAM.lines().map(str::trim);
        let code = block.lines().filter_map(|line| line.split("//").next()).map(str::trim);
        for line in code.filter(|line| !line.is_empty()) {
            assert!(program.any(|has| has == line), "the program does not go on with {line:?}");
            shown += 1;
        }
    }
    assert!(shown > 0, "no page shows Rust any more");
}

/// The program, in a process of its own: an area lies where it lay, and other tests have areas, too.
#[test]
fn shop() {
    let Ok(store) = env::var(STORE) else { return };
    orders::program(&store, 3).unwrap();
}

#[test]
fn the_second_run_goes_on_behind_the_last_order_of_the_first() {
    let place = tempfile::tempdir().unwrap();
    for orders in [["1", "2", "3"], ["4", "5", "6"]] {
        let mut command = Command::new(env::current_exe().unwrap());
        let run = command.args(["--exact", "pages::shop", "--nocapture"]).env(STORE, place.path()).output().unwrap();
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success(), "{said}{}", String::from_utf8_lossy(&run.stderr));
        // The test's own words may stand in front of the first.
        let kept: Vec<_> = said.lines().filter_map(|line| line.rsplit_once("order ")?.1.strip_suffix(" is kept")).collect();
        assert_eq!(kept, orders);
    }
}
