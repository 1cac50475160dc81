//! A plot as SVG: series of points on two axes, drawn by the crate `plotters` in the style of the pages.

use plotters::prelude::*;

use crate::ReportError;
use crate::axis::Axis;
pub use crate::axis::Scale;

/// Size of the drawing in units of its own; a page scales it to its column. Coordinates are whole numbers, so they are
/// twice as fine as they need to be.
const SIZE: (u32, u32) = (1800, 640);

/// Colours of series, in order; they differ in brightness too.
pub const COLOURS: [&str; 8] =
    ["#1f5fa8", "#e07b39", "#3a8f5c", "#b8336a", "#7a5ea8", "#2a9d9d", "#8c6d3f", "#6b7280"];

/// How a series is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// A line through the points.
    #[default]
    Line,
    /// The same, filled down to zero.
    Area,
    /// A thin line.
    Thin,
    /// Triangles that point up.
    Up,
    /// Triangles that point down.
    Down,
    /// Horizontal bars from zero, one for each point: x is their length, y their place.
    Bars,
}

/// Points under one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Index into [`COLOURS`].
    pub colour: usize,
    /// How it is drawn.
    pub style: Style,
    /// (x, y).
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// A line.
    pub fn line(name: impl Into<String>, colour: usize, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), colour, style: Style::Line, points }
    }
}

/// A plot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plot {
    /// Name for links and tests: lower case, dashes.
    pub id: String,
    /// Heading.
    pub title: String,
    /// A sentence on how to read it.
    pub note: String,
    /// What x is, with its unit.
    pub x: String,
    /// How x counts.
    pub x_scale: Scale,
    /// What y is, with its unit.
    pub y: String,
    /// How y counts.
    pub y_scale: Scale,
    /// What is drawn, the first one lowest.
    pub series: Vec<Series>,
    /// Names at y = 0, 1, ... in place of numbers, for bars.
    pub rows: Vec<String>,
}

/// At most so many points of a series, lows and highs of equal stretches of x order kept: a curve looks the same with them.
pub fn thinned(points: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    if points.len() <= most {
        return points.to_vec();
    }
    let stretch = points.len().div_ceil(most / 2);
    let mut kept = Vec::with_capacity(most);
    for part in points.chunks(stretch) {
        let by_y = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let ends = [part.iter().min_by(by_y), part.iter().max_by(by_y)];
        let mut ends: Vec<(f64, f64)> = ends.into_iter().flatten().copied().collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        ends.dedup();
        kept.extend(ends);
    }
    kept
}

impl Plot {
    /// Points of all series together.
    pub fn points(&self) -> usize {
        self.series.iter().map(|series| series.points.len()).sum()
    }

    /// The drawing, an `svg` element.
    ///
    /// # Errors
    /// [`ReportError::Plot`] with what the drawing said.
    pub fn svg(&self) -> Result<String, ReportError> {
        let problem =
            |e: &dyn std::fmt::Display| ReportError::Plot { plot: self.id.clone(), problem: e.to_string() };
        let mut text = String::new();
        {
            let rows = self.rows.len() as u32;
            // Bars of one row are as high as the text beside them.
            let height = if rows > 0 { 170 + 48 * rows } else { SIZE.1 };
            let area = SVGBackend::with_string(&mut text, (SIZE.0, height)).into_drawing_area();
            self.draw(&area).map_err(|e| problem(&e))?;
            area.present().map_err(|e| problem(&e))?;
        }
        Ok(text)
    }

    fn draw<'a>(
        &self,
        area: &DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
    ) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>> {
        let all = || self.series.iter().flat_map(|s| s.points.iter());
        let from_zero = self.series.iter().any(|s| matches!(s.style, Style::Area | Style::Bars));
        let zero = from_zero.then_some(0.0);
        let bars = !self.rows.is_empty();
        let (x, y) = if bars {
            let places = [-0.6, self.rows.len() as f64 - 0.4];
            let lengths = all().map(|p| p.0).chain(zero);
            (Axis::over(lengths, self.x_scale, true), Axis::over(places.into_iter(), Scale::Linear, true))
        } else {
            let heights = all().map(|p| p.1).chain(zero);
            (Axis::over(all().map(|p| p.0), self.x_scale, true), Axis::over(heights, self.y_scale, false))
        };
        let left = if bars { 400 } else { 160 };
        let mut chart = ChartBuilder::on(area)
            .margin_top(24)
            .margin_right(40)
            .x_label_area_size(112)
            .y_label_area_size(left)
            .build_cartesian_2d(x, y)?;
        let grey = RGBColor(75, 85, 99);
        let style = |size: i32| ("Inter, 'Helvetica Neue', Arial, sans-serif", size).into_font().color(&grey);
        let mut mesh = chart.configure_mesh();
        let at_row = |place: &f64| {
            let row = place.round();
            let name = self.rows.get(row.max(0.0) as usize).filter(|_| row >= 0.0);
            name.cloned().unwrap_or_default()
        };
        let (label_x, label_y) = (|v: &f64| x.label(*v), |v: &f64| y.label(*v));
        mesh.axis_style(RGBColor(156, 163, 175))
            .bold_line_style(RGBColor(229, 231, 235).stroke_width(2))
            .light_line_style(TRANSPARENT)
            .x_desc(self.x.as_str())
            .y_desc(self.y.as_str())
            .axis_desc_style(style(36))
            .label_style(style(34))
            .x_label_formatter(&label_x);
        if bars {
            mesh.disable_y_mesh().y_labels(0).y_desc("");
        } else {
            mesh.y_label_formatter(&label_y);
        }
        mesh.draw()?;
        for series in &self.series {
            let colour = colour(series.colour);
            let points: Vec<(f64, f64)> = series
                .points
                .iter()
                .map(|p| (x.place(p.0), y.place(p.1)))
                .filter(|p| p.0.is_finite() && p.1.is_finite())
                .collect();
            match series.style {
                Style::Line => {
                    chart.draw_series(LineSeries::new(points, colour.stroke_width(4)))?;
                }
                Style::Thin => {
                    chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
                }
                Style::Area => {
                    let fill =
                        AreaSeries::new(points, 0.0, colour.mix(0.18)).border_style(colour.stroke_width(3));
                    chart.draw_series(fill)?;
                }
                Style::Up | Style::Down => {
                    let half = if series.style == Style::Up { -11 } else { 11 };
                    let triangle = |p: (f64, f64)| {
                        let corners = vec![(0, half), (-9, -half), (9, -half)];
                        EmptyElement::at(p) + Polygon::new(corners, colour.mix(0.85).filled())
                    };
                    chart.draw_series(points.into_iter().map(triangle))?;
                }
                Style::Bars => {
                    let bar = |p: (f64, f64)| {
                        Rectangle::new([(0.0, p.1 - 0.32), (p.0, p.1 + 0.32)], colour.filled())
                    };
                    chart.draw_series(points.into_iter().map(bar))?;
                }
            }
        }
        if bars {
            let names = style(34).pos(plotters::style::text_anchor::Pos::new(
                plotters::style::text_anchor::HPos::Right,
                plotters::style::text_anchor::VPos::Center,
            ));
            for row in 0..self.rows.len() {
                let (px, py) = chart.backend_coord(&(x.range().start, row as f64));
                area.draw(&Text::new(at_row(&(row as f64)), (px - 16, py), names.clone()))?;
            }
        }
        Ok(())
    }
}

/// A colour of [`COLOURS`] as plotters has it.
fn colour(index: usize) -> RGBColor {
    let hex = COLOURS[index % COLOURS.len()];
    let part = |from: usize| u8::from_str_radix(&hex[from..from + 2], 16).unwrap_or(0);
    RGBColor(part(1), part(3), part(5))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(n: usize) -> Vec<(f64, f64)> {
        (0..n).map(|i| (i as f64, (i as f64 * 0.01).sin())).collect()
    }

    #[test]
    fn thinning_keeps_order_and_extremes() {
        let mut points = wave(10_000);
        points[5_003].1 = 7.0;
        points[77].1 = -7.0;
        let thin = thinned(&points, 500);
        assert!(thin.len() <= 502, "{}", thin.len());
        assert!(thin.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(thin.contains(&points[5_003]) && thin.contains(&points[77]));
        assert_eq!(thinned(&points[..10], 500), points[..10]);
    }

    #[test]
    fn every_style_is_drawn_in_its_colour() {
        for (i, style) in [Style::Line, Style::Area, Style::Thin, Style::Up, Style::Down, Style::Bars]
            .into_iter()
            .enumerate()
        {
            let rows =
                if style == Style::Bars { vec!["one".to_owned(), "two".to_owned()] } else { Vec::new() };
            let points = if rows.is_empty() { wave(40) } else { vec![(0.5, 0.0), (0.2, 1.0)] };
            let count = points.len();
            let series = vec![Series { name: "it".into(), colour: i, style, points }];
            let plot = Plot { id: "a".into(), x: "x".into(), y: "y".into(), series, rows, ..Plot::default() };
            let text = plot.svg().unwrap();
            let tree = roxmltree::Document::parse(&text).expect("well-formed");
            let drawn = crate::drawn::points(tree.root_element(), COLOURS[i]);
            assert!(drawn >= count, "{style:?}: {drawn} of {count}");
            assert!(crate::drawn::points(tree.root_element(), COLOURS[(i + 1) % 8]) == 0);
        }
    }
}
