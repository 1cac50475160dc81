//! What of a plot is really in its SVG: for tests.

use roxmltree::Node;

/// Points drawn in a colour: of lines, areas and triangles those of their outline, of rectangles and circles one each.
pub fn points(svg: Node<'_, '_>, colour: &str) -> usize {
    let is_it = |attribute: Option<&str>| attribute.is_some_and(|c| c.eq_ignore_ascii_case(colour));
    let count = |node: Node<'_, '_>| match node.tag_name().name() {
        "polyline" | "polygon" => node.attribute("points").unwrap_or_default().split_whitespace().count(),
        "rect" | "circle" => 1,
        _ => 0,
    };
    let drawn = svg.descendants().filter(|n| is_it(n.attribute("stroke")) || is_it(n.attribute("fill")));
    drawn.map(count).sum()
}
