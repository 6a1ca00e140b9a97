"""The check of objects compiled for one instruction set sees what it is there for."""

from check_weak_symbols import leaks, vector_initialisers, weak_functions

NM_OUTPUT = """\
0000000000000000 T pagedattn::avx2::merge_states(pagedattn::MergeParams const&, void*)
0000000000000000 W pagedattn::avx2::load_tail<float>(float const*, int)
0000000000000000 W at::vec::AVX2::Vectorized<float>::loadu(void const*, long)
0000000000000000 W c10::Half::operator float() const
0000000000000000 t helper(int)
0000000000000000 V DW.ref.__gxx_personality_v0
"""


def test_a_weak_function_outside_of_the_instruction_set_is_a_leak() -> None:
    names = weak_functions(NM_OUTPUT)
    assert len(names) == 4
    assert leaks(names, "avx2") == ["c10::Half::operator float() const"]


def test_weak_functions_of_another_instruction_set_are_leaks() -> None:
    assert len(leaks(weak_functions(NM_OUTPUT), "avx512")) == 3


def test_a_static_initialiser_with_vector_registers_is_found() -> None:
    disassembly = """\
0000000000000000 <_GLOBAL__sub_I_attention.cpp>:
   0: vpxor  %xmm0,%xmm0,%xmm0

0000000000000010 <_GLOBAL__sub_I_combine.cpp>:
   0: push   %rbx

0000000000000020 <attention>:
   0: vpxor  %ymm0,%ymm0,%ymm0
"""
    assert vector_initialisers(disassembly) == ["_GLOBAL__sub_I_attention.cpp"]
