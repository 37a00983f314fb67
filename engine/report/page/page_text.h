// The template of the page, as the build made it of page.html, page.css, page.js and charts.js.
#pragma once

#include <string_view>

namespace trainer::report::page {

extern const std::string_view kHtml, kStyle, kScript;

}  // namespace trainer::report::page
