// The template of the page, as the build made it of plan_page.html, plan_page.css, plan_page.js and plan_charts.js.
#pragma once

#include <string_view>

namespace trainer::tools::page {

extern const std::string_view kHtml, kStyle, kScript;

}  // namespace trainer::tools::page
