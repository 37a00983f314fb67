// Accuracy of the vector functions that all loops are made of, in units of the last place of the f64 result.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cpu/runtime/choose.h"
#include "kernels/cpu/runtime/math_check.h"

using namespace trainer::kernels::cpu;

namespace {

struct Case {
  Function function;
  const char* name;
  double (*truth)(double);
  double low, high, ulps;
};

const Case kCases[] = {
    {Function::exp, "exp", [](double x) { return std::exp(x); }, -87.3, 88.7, 2},
    {Function::log, "log", [](double x) { return std::log(x); }, 1e-37, 4, 2},
    {Function::log, "log", [](double x) { return std::log(x); }, 4, 3e38, 2},
    {Function::tanh, "tanh", [](double x) { return std::tanh(x); }, -12, 12, 3},
    {Function::tanh, "tanh", [](double x) { return std::tanh(x); }, -1e-3, 1e-3, 3},
    {Function::erf, "erf", [](double x) { return std::erf(x); }, -5, 5, 4},
    {Function::sigmoid, "sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); }, -87, 87, 4},
    {Function::reciprocal, "reciprocal", [](double x) { return 1 / x; }, 1e-6, 1e6, 2},
};

std::vector<float> apply(Isa isa, Function function, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  CHOOSE_BY_ISA(isa, apply_function)(function, x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  return y;
}

double ulp_of(double y) { return std::ldexp(1.0, std::max(std::ilogb(y), -126) - 23); }

std::vector<Isa> isas() {
  std::vector<Isa> all;
  for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512})
    if (isa <= detect_isa()) all.push_back(isa);
  return all;
}

}  // namespace

TEST_CASE("vector functions are within their stated ulps") {
  for (Isa isa : isas())
    for (const Case& c : kCases) {
      std::vector<float> x;
      for (int i = 0; i <= 200003; ++i) x.push_back(static_cast<float>(c.low + (c.high - c.low) * i / 200003));
      const std::vector<float> y = apply(isa, c.function, x);
      double worst = 0, at = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double truth = c.truth(x[i]);
        if (truth == 0) continue;
        const double error = std::abs(y[i] - truth) / ulp_of(truth);
        if (!(error <= worst)) worst = error, at = x[i];
      }
      INFO(name_of(isa), " ", c.name, " at ", at, ": ", worst, " ulp");
      CHECK(worst <= c.ulps);
    }
}

TEST_CASE("vector functions keep NaN and meet infinities") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (Isa isa : isas()) {
    const std::vector<float> x = {inf, -inf, nan, 0.0f};
    const auto check = [&](Function function, std::vector<double> expected) {
      const std::vector<float> y = apply(isa, function, x);
      INFO(name_of(isa), " function ", static_cast<int>(function));
      for (std::size_t i = 0; i < 4; ++i)
        CHECK((std::isnan(expected[i]) ? std::isnan(y[i]) : y[i] == static_cast<float>(expected[i])));
    };
    check(Function::exp, {inf, 0, nan, 1});
    check(Function::log, {inf, nan, nan, -inf});
    check(Function::tanh, {1, -1, nan, 0});
    check(Function::erf, {1, -1, nan, 0});
    check(Function::sigmoid, {1, 0, nan, 0.5});
    check(Function::reciprocal, {0, 0, nan, inf});
  }
}
