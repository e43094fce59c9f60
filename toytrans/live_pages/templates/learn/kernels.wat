;; The products of matrices of a model that learns in a page, four fp32 numbers at once.
;;
;; All numbers lie in the memory that the page gives. Addresses and steps are in bytes; a step leads
;; from one row of a matrix to the next one, or, where it is called `across`, from one column to the
;; next. kernels.wasm is this file, assembled; a test assembles it again.
(module
  (import "page" "memory" (memory 1))

  ;; Up to four rows of c, eight columns wide: c (rows, 8) = a (rows, inner) b (inner, 8), or added
  ;; to what c holds. All eight sums of a row stay in registers. Rows that are missing are the last
  ;; one again: it is computed twice, to the same numbers in the same place.
  (func $tile (param $rows i32) (param $inner i32)
              (param $a i32) (param $a_step i32) (param $a_across i32)
              (param $b i32) (param $b_step i32)
              (param $c i32) (param $c_step i32) (param $adds i32)
    (local $a1 i32) (local $a2 i32) (local $a3 i32)
    (local $c1 i32) (local $c2 i32) (local $c3 i32)
    (local $left v128) (local $right v128) (local $value v128)
    (local $left0 v128) (local $right0 v128) (local $left1 v128) (local $right1 v128)
    (local $left2 v128) (local $right2 v128) (local $left3 v128) (local $right3 v128)
    (local.set $a1 (local.get $a)) (local.set $c1 (local.get $c))
    (if (i32.gt_s (local.get $rows) (i32.const 1)) (then
      (local.set $a1 (i32.add (local.get $a) (local.get $a_step)))
      (local.set $c1 (i32.add (local.get $c) (local.get $c_step)))))
    (local.set $a2 (local.get $a1)) (local.set $c2 (local.get $c1))
    (if (i32.gt_s (local.get $rows) (i32.const 2)) (then
      (local.set $a2 (i32.add (local.get $a1) (local.get $a_step)))
      (local.set $c2 (i32.add (local.get $c1) (local.get $c_step)))))
    (local.set $a3 (local.get $a2)) (local.set $c3 (local.get $c2))
    (if (i32.gt_s (local.get $rows) (i32.const 3)) (then
      (local.set $a3 (i32.add (local.get $a2) (local.get $a_step)))
      (local.set $c3 (i32.add (local.get $c2) (local.get $c_step)))))
    (if (local.get $adds) (then
      (local.set $left0 (v128.load (local.get $c)))
      (local.set $right0 (v128.load offset=16 (local.get $c)))
      (local.set $left1 (v128.load (local.get $c1)))
      (local.set $right1 (v128.load offset=16 (local.get $c1)))
      (local.set $left2 (v128.load (local.get $c2)))
      (local.set $right2 (v128.load offset=16 (local.get $c2)))
      (local.set $left3 (v128.load (local.get $c3)))
      (local.set $right3 (v128.load offset=16 (local.get $c3)))))
    (loop $next
      (local.set $left (v128.load (local.get $b)))
      (local.set $right (v128.load offset=16 (local.get $b)))
      (local.set $value (v128.load32_splat (local.get $a)))
      (local.set $left0 (f32x4.add (local.get $left0) (f32x4.mul (local.get $value) (local.get $left))))
      (local.set $right0 (f32x4.add (local.get $right0) (f32x4.mul (local.get $value) (local.get $right))))
      (local.set $value (v128.load32_splat (local.get $a1)))
      (local.set $left1 (f32x4.add (local.get $left1) (f32x4.mul (local.get $value) (local.get $left))))
      (local.set $right1 (f32x4.add (local.get $right1) (f32x4.mul (local.get $value) (local.get $right))))
      (local.set $value (v128.load32_splat (local.get $a2)))
      (local.set $left2 (f32x4.add (local.get $left2) (f32x4.mul (local.get $value) (local.get $left))))
      (local.set $right2 (f32x4.add (local.get $right2) (f32x4.mul (local.get $value) (local.get $right))))
      (local.set $value (v128.load32_splat (local.get $a3)))
      (local.set $left3 (f32x4.add (local.get $left3) (f32x4.mul (local.get $value) (local.get $left))))
      (local.set $right3 (f32x4.add (local.get $right3) (f32x4.mul (local.get $value) (local.get $right))))
      (local.set $a (i32.add (local.get $a) (local.get $a_across)))
      (local.set $a1 (i32.add (local.get $a1) (local.get $a_across)))
      (local.set $a2 (i32.add (local.get $a2) (local.get $a_across)))
      (local.set $a3 (i32.add (local.get $a3) (local.get $a_across)))
      (local.set $b (i32.add (local.get $b) (local.get $b_step)))
      (br_if $next (local.tee $inner (i32.sub (local.get $inner) (i32.const 1)))))
    (v128.store (local.get $c) (local.get $left0))
    (v128.store offset=16 (local.get $c) (local.get $right0))
    (v128.store (local.get $c1) (local.get $left1))
    (v128.store offset=16 (local.get $c1) (local.get $right1))
    (v128.store (local.get $c2) (local.get $left2))
    (v128.store offset=16 (local.get $c2) (local.get $right2))
    (v128.store (local.get $c3) (local.get $left3))
    (v128.store offset=16 (local.get $c3) (local.get $right3)))

  ;; c (rows, columns) = a (rows, inner) b (inner, columns), or added to what c holds. a may have
  ;; steps both ways, so that a transposed one costs nothing. The columns of b and c lie side by
  ;; side, and there are as many as the next multiple of 8.
  (func (export "product") (param $rows i32) (param $inner i32) (param $columns i32)
        (param $a i32) (param $a_step i32) (param $a_across i32)
        (param $b i32) (param $b_step i32)
        (param $c i32) (param $c_step i32) (param $adds i32)
    (local $left i32) (local $a_row i32) (local $c_row i32)
    (loop $eight_columns
      (local.set $left (local.get $rows))
      (local.set $a_row (local.get $a))
      (local.set $c_row (local.get $c))
      (loop $four_rows
        (call $tile (local.get $left) (local.get $inner)
          (local.get $a_row) (local.get $a_step) (local.get $a_across)
          (local.get $b) (local.get $b_step)
          (local.get $c_row) (local.get $c_step) (local.get $adds))
        (local.set $a_row (i32.add (local.get $a_row) (i32.shl (local.get $a_step) (i32.const 2))))
        (local.set $c_row (i32.add (local.get $c_row) (i32.shl (local.get $c_step) (i32.const 2))))
        (local.set $left (i32.sub (local.get $left) (i32.const 4)))
        (br_if $four_rows (i32.gt_s (local.get $left) (i32.const 0))))
      (local.set $b (i32.add (local.get $b) (i32.const 32)))
      (local.set $c (i32.add (local.get $c) (i32.const 32)))
      (local.set $columns (i32.sub (local.get $columns) (i32.const 8)))
      (br_if $eight_columns (i32.gt_s (local.get $columns) (i32.const 0)))))

  ;; to (columns, rows) = from (rows, columns), transposed
  (func (export "transpose") (param $rows i32) (param $columns i32)
        (param $from i32) (param $from_step i32) (param $to i32) (param $to_step i32)
    (local $read i32) (local $write i32) (local $left i32)
    (loop $row
      (local.set $read (local.get $from))
      (local.set $write (local.get $to))
      (local.set $left (local.get $columns))
      (loop $column
        (f32.store (local.get $write) (f32.load (local.get $read)))
        (local.set $read (i32.add (local.get $read) (i32.const 4)))
        (local.set $write (i32.add (local.get $write) (local.get $to_step)))
        (br_if $column (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
      (local.set $from (i32.add (local.get $from) (local.get $from_step)))
      (local.set $to (i32.add (local.get $to) (i32.const 4)))
      (br_if $row (local.tee $rows (i32.sub (local.get $rows) (i32.const 1))))))

  ;; x = max(x, 0), for a number of x that is a multiple of 4
  (func (export "relu") (param $count i32) (param $x i32)
    (loop $next
      (v128.store (local.get $x)
        (f32x4.max (v128.load (local.get $x)) (v128.const f32x4 0 0 0 0)))
      (local.set $x (i32.add (local.get $x) (i32.const 16)))
      (br_if $next (local.tee $count (i32.sub (local.get $count) (i32.const 4))))))

  ;; gradient = 0 where relu gave 0, for a number of them that is a multiple of 4
  (func (export "reluBack") (param $count i32) (param $gradient i32) (param $x i32)
    (loop $next
      (v128.store (local.get $gradient)
        (v128.and (v128.load (local.get $gradient))
          (f32x4.gt (v128.load (local.get $x)) (v128.const f32x4 0 0 0 0))))
      (local.set $gradient (i32.add (local.get $gradient) (i32.const 16)))
      (local.set $x (i32.add (local.get $x) (i32.const 16)))
      (br_if $next (local.tee $count (i32.sub (local.get $count) (i32.const 4))))))
)
